# SPDX-License-Identifier: MIT
"""Runs other packages on detops, from :func:`provide` until its handle is removed."""

from __future__ import annotations

import threading
from importlib import import_module
from types import TracebackType
from typing import Any

_LOCK = threading.RLock()
_OPEN: dict[str, int] = {}  # number of open handles per name
_PATCHES: dict[str, Any] = {}
# Names that also patch Python functions, and the module whose `patch` does so.
WITH_PATCH = {
    "mmcv": "mmcv_python",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "ultralytics": "ultralytics",
}


def _begin(name: str) -> None:
    hook = import_module("detops_hook")
    if name in hook.SUPPLIED:
        foreign = hook.FINDER.foreign_module(name)
        if foreign is not None:
            raise RuntimeError(
                f"detops.compat.provide: {foreign.__name__} was already imported from "
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
    """Handle returned by :func:`provide`; active until it is removed.

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
        """Deactivates the handle.

        The package is restored when the last handle of its name is removed. Further calls do
        nothing.
        """
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
    """Makes another package compute with detops, without changes to the package.

    ::

        detops.compat.provide("mmcv")  # from here on
        import mmcv.ops

        with detops.compat.provide("maskrcnn_benchmark"):
            from maskrcnn_benchmark import _C

    ``"mmcv"``, ``"detectron2"`` and ``"maskrcnn_benchmark"`` have a compiled module, which detops
    supplies: ``mmcv._ext``, ``detectron2._C`` (and ``torch.ops.detectron2``) and
    ``maskrcnn_benchmark._C``. It needs and writes no file of the package: it works where the
    compiled module is not installed, and takes precedence where it is. Names, argument order,
    conventions and results are those of the package: angles, the last pixel, comparison with
    thresholds. Functions that detops lacks exist and raise NotImplementedError when called.

    In ``"torchvision"``, ``"transformers"`` and ``"ultralytics"``, detops replaces functions. For
    torchvision see :func:`detops.patch_torchvision`. In transformers these are the deformable
    attention of Deformable DETR and related models, and the assignment in their matchers; in
    ultralytics, the same two in RT-DETR, and NMS. ``"mmcv"`` also replaces the assignment in
    mmdet's matchers.

    The change takes effect at once and for the whole process. End it with ``remove()`` on the
    returned handle, or use the handle as a context manager. Modules imported in between keep the
    functions that they imported from a compiled module. ``detops compat enable NAME`` does the same
    for every Python process started in an environment, until ``detops compat disable NAME``.

    Args:
        name: name of the package, one of the six above.

    Raises:
        ValueError: any other name.
        RuntimeError: the package has already loaded its own compiled module.
        ImportError: torchvision, transformers or ultralytics is not installed.

    Example:
        >>> import torchvision
        >>> with detops.compat.provide("torchvision"):
        ...     torchvision.ops.nms(torch.tensor([[0.0, 0, 9, 9]] * 2), torch.ones(2), 0.5)
        tensor([0])
    """
    names = import_module("detops_hook").NAMES
    if name not in names:
        raise ValueError(
            f"detops.compat.provide: name must be one of {', '.join(names)}, got {name!r}"
        )
    return Provided(name)
