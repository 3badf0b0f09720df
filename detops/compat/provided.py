# SPDX-License-Identifier: MIT
"""Other packages on our ops, from :func:`provide` on until its handle is removed."""

from __future__ import annotations

import threading
from importlib import import_module
from types import TracebackType
from typing import Any

_LOCK = threading.RLock()
_OPEN: dict[str, int] = {}  # handles of a name that are open
_PATCHES: dict[str, Any] = {}
# Names some of whose functions get other bodies, and the module whose `patch` does it.
WITH_PATCH = {
    "mmcv": "mmcv_python",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "ultralytics": "ultralytics",
}


def _begin(name: str) -> None:
    hook = import_module("detops_hook")
    if name in hook.SUPPLIED:
        foreign = hook.FINDER.is_foreign(name)
        if foreign is not None:
            raise RuntimeError(
                f"detops.compat.provide: {foreign.__name__} has been imported already, from "
                f"{getattr(foreign, '__file__', None)}; call provide({name!r}) before anything "
                f"imports {name}"
            )
        if name == "detectron2":
            import_module("detops.compat.detectron2").register()
        hook.FINDER.supply(name)
    if name in WITH_PATCH:
        _PATCHES[name] = import_module(f"detops.compat.{WITH_PATCH[name]}").patch()


def _end(name: str) -> None:
    hook = import_module("detops_hook")
    if name in hook.SUPPLIED:
        hook.FINDER.withdraw(name)
        if name == "detectron2":
            import_module("detops.compat.detectron2").unregister()
    if name in WITH_PATCH:
        _PATCHES.pop(name).restore()


class Provided:
    """What :func:`provide` gives: on until it is removed.

    Example:
        >>> provided = detops.compat.provide("torchvision")
        >>> provided.remove()
        >>> provided
        <detops.compat.provide('torchvision'), removed>
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open = False
        self._begin()

    def __repr__(self) -> str:
        return f"<detops.compat.provide({self.name!r}), {'on' if self._open else 'removed'}>"

    def _begin(self) -> None:
        with _LOCK:
            if self._open:
                return
            if _OPEN.get(self.name, 0) == 0:
                _begin(self.name)
            _OPEN[self.name] = _OPEN.get(self.name, 0) + 1
            self._open = True

    def remove(self) -> None:
        """Ends it, unless another handle of the name is open; twice is harmless."""
        with _LOCK:
            if not self._open:
                return
            self._open = False
            _OPEN[self.name] -= 1
            if _OPEN[self.name] == 0:
                _end(self.name)

    def __enter__(self) -> Provided:
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def provide(name: str) -> Provided:
    """Makes another package, unchanged, compute with these ops.

    ::

        detops.compat.provide("mmcv")  # from here on
        import mmcv.ops

        with detops.compat.provide("maskrcnn_benchmark"):
            from maskrcnn_benchmark import _C

    ``"mmcv"``, ``"detectron2"`` and ``"maskrcnn_benchmark"`` have a compiled half, which is found
    in detops: ``mmcv._ext``, ``detectron2._C`` (and ``torch.ops.detectron2``),
    ``maskrcnn_benchmark._C``. No file of theirs is written or needed; it works where the compiled
    half is not installed and has precedence where it is. Names, order of arguments, conventions and
    results are that package's: angles, the last pixel, what happens at a threshold. A function that
    detops does not have is there and raises NotImplementedError when it is called.

    ``"torchvision"``, ``"transformers"`` and ``"ultralytics"`` have functions for which ours stand
    in: see :func:`detops.patch_torchvision` for the first. In transformers it is the deformable
    attention of Deformable DETR and its relatives, and the assignment in their matchers; in
    ultralytics both of RT-DETR, and NMS. With ``"mmcv"`` mmdet's matchers change, too.

    It begins at once and holds for the process. The result ends it: by ``remove()``, or as a
    context manager. Modules that were imported meanwhile keep the functions that they have taken
    from a compiled half. ``detops compat enable NAME`` does the same for every Python that is
    started in an environment, until ``detops compat disable NAME``.

    Args:
        name: one of the six.

    Raises:
        ValueError: another name.
        RuntimeError: the package has its own compiled half loaded already.
        ImportError: a package of the last three is not installed.

    Example:
        >>> import torchvision
        >>> with detops.compat.provide("torchvision"):
        ...     torchvision.ops.nms(torch.tensor([[0.0, 0, 9, 9]] * 2), torch.ones(2), 0.5)
        tensor([0])
    """
    names = import_module("detops_hook").NAMES
    if name not in names:
        raise ValueError(f"detops.compat.provide: {name!r} is none of {', '.join(names)}")
    return Provided(name)
