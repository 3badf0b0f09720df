"""Runs torchvision on detops ops: :func:`patch_torchvision`."""

import threading
import warnings
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

import torch

from ... import _C
from ..patching import CodePatch
from .functions import FUNCTIONS
from .kernels import KERNELS

F = TypeVar("F", bound=Callable[..., Any])


def _override_kernels() -> torch.library.Library:
    """Returns a fragment of torchvision's library; destroying it restores the old kernels."""
    library = torch.library.Library("torchvision", "IMPL")
    devices = ["CPU"] if _C.cuda_version is None else ["CPU", "CUDA"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, kernel in KERNELS.items():
            if torch._C._dispatch_has_kernel(f"torchvision::{name}"):  # newer versions have more
                for device in devices:
                    library.impl(name, kernel, device)
    return library


class _Patch:
    """The replacements in effect while at least one handle is open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles = 0
        self.library: torch.library.Library | None = None
        self.patches: list[CodePatch] = []

    def open(self) -> None:
        with self.lock:
            if self.handles == 0:
                try:
                    self._apply()
                except BaseException:
                    self._restore()
                    raise
            self.handles += 1

    def close(self) -> None:
        with self.lock:
            self.handles -= 1
            if self.handles == 0:
                self._restore()

    def _apply(self) -> None:
        self.library = _override_kernels()
        for (module, name), replacement in FUNCTIONS.items():
            self.patches.append(CodePatch(module, name, replacement))

    def _restore(self) -> None:
        while self.patches:
            self.patches.pop().restore()
        if self.library is not None:
            self.library._destroy()
            self.library = None


_PATCH = _Patch()


class TorchvisionPatch:
    """An open patch; see :func:`patch_torchvision`."""

    def __init__(self) -> None:
        self._open = False
        self._depth = 0  # depth of nested ``with`` blocks
        self._begin()

    def _begin(self) -> None:
        if not self._open:
            _PATCH.open()
            self._open = True

    def restore(self) -> None:
        """Closes this patch; further calls do nothing.

        Closing the last open patch restores torchvision.
        """
        if self._open:
            self._open = False
            _PATCH.close()

    def __enter__(self) -> "TorchvisionPatch":
        self._begin()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.restore()

    def __call__(self, function: F) -> F:
        """Decorates ``function`` to run patched; removes the patch outside its calls."""
        self.restore()

        @wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with TorchvisionPatch():
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]


def patch_torchvision() -> TorchvisionPatch:
    """Makes torchvision compute with detops ops, until the patch is restored.

    ::

        with detops.patch_torchvision():
            detections = torchvision_model(images)

        patch = detops.patch_torchvision()  # from here on
        patch.restore()

        @detops.patch_torchvision()  # during calls
        def evaluate(model): ...

    The kernels of ``torch.ops.torchvision`` (nms, box_iou_rotated, roi_align, roi_pool,
    ps_roi_align, ps_roi_pool, deform_conv2d, forward and backward) are replaced in the dispatcher.
    Python functions (batched_nms, MultiScaleRoIAlign, paste_masks_in_image, the box_iou family, the
    losses, masks_to_boxes) get a new body. The patch therefore affects functions regardless of how
    and when they were imported, and existing models, including those in TorchScript and
    ``torch.compile``. Names and attributes stay the same.

    NMS returns exactly torchvision's indices in the same order. Floating-point results agree within
    rounding, so only a box within rounding of a threshold could differ. Results differ by design
    where torchvision's are undefined: an overlap ratio of 0 / 0 is 0 instead of NaN; a batch index
    out of range raises an error instead of reading out of bounds; and the gradient of ps_roi_pool
    skips the last row and column of a feature map, as its output does. Quantized tensors, devices
    other than CPU and (if built for it) CUDA, ONNX export and traces are unaffected. Scripts
    contain torchvision's functions, and run on our kernels.

    Patches nest, and a restored patch patches again when it is used in another ``with``. Restoring
    the last open patch restores torchvision, in whatever order patches are restored. Patches affect
    the whole process, including other threads. A call in progress in another thread while a patch
    begins or ends may use either implementation.

    Raises:
        ImportError: torchvision is not installed.

    Example:
        >>> import torchvision
        >>> with detops.patch_torchvision():
        ...     torchvision.ops.nms(torch.tensor([[0.0, 0, 9, 9]] * 2), torch.ones(2), 0.5)
        tensor([0])
    """
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"detops.patch_torchvision: torchvision cannot be imported ({error}); install it with "
            "pip install torchvision"
        ) from error
    return TorchvisionPatch()


patch = patch_torchvision
