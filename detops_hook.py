# SPDX-License-Identifier: MIT
"""Finds the compiled half of other packages in detops: what `detops.compat.provide` turns on.

The standard library alone: where an environment has it turned on for good, every start of Python
in that environment imports this module, and PyTorch only when it is needed.
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

# The compiled module that a package imports, and ours that has its names.
SUPPLIED = {
    "mmcv": ("mmcv._ext", "detops.compat.mmcv"),
    "detectron2": ("detectron2._C", "detops.compat.detectron2"),
    "maskrcnn_benchmark": ("maskrcnn_benchmark._C", "detops.compat.maskrcnn_benchmark"),
}
# Packages without one, some of whose functions are replaced.
PATCHED = ("torchvision", "transformers", "ultralytics")
NAMES = (*SUPPLIED, *PATCHED)
_SOURCES = dict(SUPPLIED.values())


class _After:
    """A loader that calls functions when its module has been loaded."""

    def __init__(self, loader: Any, actions: Sequence[Callable[[], object]]) -> None:
        self.loader, self.actions = loader, actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        for action in tuple(self.actions):
            action()


class Finder:
    """What stands first in ``sys.meta_path``: it knows the names in SUPPLIED, and no others."""

    def __init__(self) -> None:
        self.supplied: set[str] = set()
        self.watched: dict[str, list[Callable[[], object]]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Says who loads a module, if that is ours to say."""
        if name in self.supplied:
            return ModuleSpec(name, self, origin=_SOURCES[name])  # type: ignore[arg-type]
        if not self.watched.get(name):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _After(spec.loader, self.watched[name])  # type: ignore[assignment]
                return spec
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Fills the module with what ours of the same purpose has under those names."""
        vars(module).update(import_module(_SOURCES[module.__name__]).contents())

    def supply(self, package: str) -> None:
        """Has the compiled half of ``package`` found in detops from now on."""
        self.supplied.add(SUPPLIED[package][0])
        self._place()

    def watch(self, module: str, action: Callable[[], object]) -> None:
        """Calls ``action`` when ``module`` is imported."""
        self.watched.setdefault(module, []).append(action)
        self._place()

    def unwatch(self, module: str, action: Callable[[], object]) -> None:
        """Takes back one call of :meth:`watch`."""
        self.watched[module].remove(action)
        self._leave()

    def _place(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def _leave(self) -> None:
        if self in sys.meta_path and not self.supplied and not any(self.watched.values()):
            sys.meta_path.remove(self)

    def withdraw(self, package: str) -> None:
        """Ends what :meth:`supply` began, and forgets the module if it was loaded."""
        module = SUPPLIED[package][0]
        self.supplied.discard(module)
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded.__spec__, "loader", None) is self:
            del sys.modules[module]
            parent, _, name = module.rpartition(".")
            if vars(sys.modules.get(parent, loaded)).get(name) is loaded:
                delattr(sys.modules[parent], name)
        self._leave()

    def is_foreign(self, package: str) -> ModuleType | None:
        """The compiled half that the package has loaded already, from elsewhere."""
        loaded = sys.modules.get(SUPPLIED[package][0])
        own = loaded is None or getattr(loaded.__spec__, "loader", None) is self
        return None if own else loaded


FINDER = Finder()


def install(*names: str) -> None:
    """What the line of an environment's ``detops_compat.pth`` calls as Python starts."""
    for name in names:
        if name in SUPPLIED:  # even while the package itself is being imported
            FINDER.supply(name)
        if name in NAMES:
            FINDER.watch(name, partial(_provide, name))


def _provide(name: str) -> None:
    import_module("detops.compat").provide(name)


# An environment's choice. Python runs lines of .pth files that begin with "import"; this one stays
# silent where detops has been uninstalled since.

_LINE = (
    "import importlib.util as u; u.find_spec('detops_hook') and "
    "__import__('detops_hook').install({names})\n"
)


def pth_file() -> Path:
    """Where the running Python's environment keeps its choice."""
    return Path(sysconfig.get_path("purelib")) / "detops_compat.pth"


def enabled() -> list[str]:
    """What the environment has turned on for good."""
    try:
        text = pth_file().read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [name for name in NAMES if repr(name) in text]


def enable(names: Iterable[str]) -> None:
    """Turns names on for good, for every Python that starts in this environment."""
    _write([*enabled(), *names])


def disable(names: Iterable[str]) -> None:
    """Takes back what :func:`enable` did; the last name takes the file with it."""
    away = set(names)
    _write([name for name in enabled() if name not in away])


def _write(names: Sequence[str]) -> None:
    file = pth_file()
    chosen = [name for name in NAMES if name in names]
    if not chosen:
        file.unlink(missing_ok=True)
        return
    # Whole or not at all: other processes may start meanwhile.
    handle, path = tempfile.mkstemp(dir=file.parent, prefix=".detops_compat")
    with os.fdopen(handle, "w", encoding="utf-8") as new:
        new.write(_LINE.format(names=", ".join(map(repr, chosen))))
    os.chmod(path, 0o644)
    os.replace(path, file)
