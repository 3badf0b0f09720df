# SPDX-License-Identifier: MIT
"""Import hooks that let other packages find their compiled half in detops.

`detops.compat.provide` enables them for a process, `detops compat enable` for an environment. Every
Python process of such an environment imports this module, so it imports only the standard library;
PyTorch is imported when it is needed.
"""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# The compiled module that a package imports, and our module that provides its names.
SUPPLIED = {
    "mmcv": ("mmcv._ext", "detops.compat.mmcv"),
    "detectron2": ("detectron2._C", "detops.compat.detectron2"),
    "maskrcnn_benchmark": ("maskrcnn_benchmark._C", "detops.compat.maskrcnn_benchmark"),
}
# Packages without a compiled module, in which we replace some functions.
PATCHED = ("torchvision", "transformers", "ultralytics")
NAMES = (*SUPPLIED, *PATCHED)
_SOURCES = dict(SUPPLIED.values())


class _PostImportLoader:
    """Wraps a loader and calls functions after it has loaded its module."""

    def __init__(self, loader: Any, callbacks: Sequence[Callable[[], object]]) -> None:
        self.loader, self.callbacks = loader, callbacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        for callback in tuple(self.callbacks):
            callback()


class Finder:
    """Finder in front of ``sys.meta_path`` that handles only the modules named in SUPPLIED."""

    def __init__(self) -> None:
        self.supplied: set[str] = set()
        self.watched: dict[str, list[Callable[[], object]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns the spec of a supplied or watched module, else None."""
        if name in self.supplied:
            return ModuleSpec(name, self, origin=_SOURCES[name])  # type: ignore[arg-type]
        if not self.watched.get(name):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _PostImportLoader(spec.loader, self.watched[name])  # type: ignore[assignment]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Lets Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module with the contents of our replacement."""
        vars(module).update(import_module(_SOURCES[module.__name__]).contents())

    def supply(self, package: str) -> None:
        """Supplies the compiled half of ``package`` until :meth:`withdraw`."""
        self.supplied.add(SUPPLIED[package][0])
        self._insert()

    def watch(self, module: str, callback: Callable[[], object]) -> None:
        """Calls ``callback`` when ``module`` is imported."""
        self.watched.setdefault(module, []).append(callback)
        self._insert()

    def unwatch(self, module: str, callback: Callable[[], object]) -> None:
        """Undoes one call of :meth:`watch`."""
        self.watched[module].remove(callback)
        self._remove_if_idle()

    def _insert(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _remove_if_idle(self) -> None:
        if self in sys.meta_path and not self.supplied and not any(self.watched.values()):
            sys.meta_path.remove(self)

    def withdraw(self, package: str) -> None:
        """Undoes :meth:`supply` and unloads the supplied module."""
        module = SUPPLIED[package][0]
        self.supplied.discard(module)
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded.__spec__, "loader", None) is self:
            del sys.modules[module]
            parent, _, name = module.rpartition(".")
            if vars(sys.modules.get(parent, loaded)).get(name) is loaded:
                delattr(sys.modules[parent], name)
        self._remove_if_idle()

    def foreign_module(self, package: str) -> ModuleType | None:
        """Returns the compiled half that was already loaded from elsewhere, or None."""
        loaded = sys.modules.get(SUPPLIED[package][0])
        is_own = loaded is None or getattr(loaded.__spec__, "loader", None) is self
        return None if is_own else loaded


FINDER = Finder()


def install(*names: str) -> None:
    """Enables packages when Python starts; called by the environment's ``detops_compat.pth``."""
    for name in names:
        if name in SUPPLIED:  # even while the package itself is being imported
            FINDER.supply(name)
        if name in NAMES:
            FINDER.watch(name, partial(_provide, name))


def _provide(name: str) -> None:
    import_module("detops.compat").provide(name)


# Python executes the lines of .pth files that begin with "import". This one does nothing if detops
# has been uninstalled since.
_LINE = (
    "import importlib.util as u; u.find_spec('detops_hook') and "
    "__import__('detops_hook').install({names})\n"
)


def pth_file() -> Path:
    """Returns the path of the file that stores the enabled packages of this environment."""
    return Path(sysconfig.get_path("purelib")) / "detops_compat.pth"


def enabled() -> list[str]:
    """Returns the packages that are enabled in this environment."""
    try:
        text = pth_file().read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [name for name in NAMES if repr(name) in text]


def enable(names: Iterable[str]) -> None:
    """Enables packages for every Python process that starts in this environment."""
    _write([*enabled(), *names])


def disable(names: Iterable[str]) -> None:
    """Undoes :func:`enable`; deletes the file if no package remains."""
    removed = set(names)
    _write([name for name in enabled() if name not in removed])


def _write(names: Sequence[str]) -> None:
    file = pth_file()
    chosen = [name for name in NAMES if name in names]
    if not chosen:
        file.unlink(missing_ok=True)
        return
    # Replaced atomically: other processes may start at the same time.
    handle, path = tempfile.mkstemp(dir=file.parent, prefix=".detops_compat")
    with os.fdopen(handle, "w", encoding="utf-8") as new:
        new.write(_LINE.format(names=", ".join(map(repr, chosen))))
    os.chmod(path, 0o644)
    os.replace(path, file)
