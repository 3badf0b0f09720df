"""torchvision on our ops: :func:`patch_torchvision`."""

import threading
import warnings
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

import torch

from ... import _C
from ..bodies import Body
from .functions import FUNCTIONS
from .kernels import KERNELS

F = TypeVar("F", bound=Callable[..., Any])


def _override_kernels() -> torch.library.Library:
    """A fragment of torchvision's library; what it replaced is back when it is destroyed."""
    library = torch.library.Library("torchvision", "IMPL")
    devices = ["CPU"] if _C.cuda_version is None else ["CPU", "CUDA"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, kernel in KERNELS.items():
            if torch._C._dispatch_has_kernel(f"torchvision::{name}"):  # newer ones have more
                for device in devices:
                    library.impl(name, kernel, device)
    return library


class _Patch:
    """What is replaced while at least one handle is open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handles = 0
        self.library: torch.library.Library | None = None
        self.bodies: list[Body] = []

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
            self.bodies.append(Body(module, name, replacement))

    def _restore(self) -> None:
        while self.bodies:
            self.bodies.pop().restore()
        if self.library is not None:
            self.library._destroy()
            self.library = None


_PATCH = _Patch()


class TorchvisionPatch:
    """An open patch; see :func:`patch_torchvision`."""

    def __init__(self) -> None:
        self._open = False
        self._blocks = 0  # of ``with``, one in the other
        self._begin()

    def _begin(self) -> None:
        if not self._open:
            _PATCH.open()
            self._open = True

    def restore(self) -> None:
        """Closes this patch. The last one to be closed puts everything back; twice is harmless."""
        if self._open:
            self._open = False
            _PATCH.close()

    def __enter__(self) -> "TorchvisionPatch":
        self._begin()
        self._blocks += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._blocks -= 1
        if self._blocks == 0:
            self.restore()

    def __call__(self, function: F) -> F:
        """A decorator: patched during calls of ``function``, and not before."""
        self.restore()

        @wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with TorchvisionPatch():
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]


def patch_torchvision() -> TorchvisionPatch:
    """Makes torchvision compute with these ops, until the patch is restored.

    ::

        with detops.patch_torchvision():
            detections = torchvision_model(images)

        patch = detops.patch_torchvision()  # from here on
        patch.restore()

        @detops.patch_torchvision()  # during calls
        def evaluate(model): ...

    The kernels of ``torch.ops.torchvision`` (nms, box_iou_rotated, roi_align, roi_pool,
    ps_roi_align, ps_roi_pool, deform_conv2d, forward and backward) are replaced in the dispatcher.
    The functions that are Python (batched_nms, MultiScaleRoIAlign, paste_masks_in_image, the
    box_iou family, the losses, masks_to_boxes) get another body. The patch therefore reaches
    functions however and whenever they were imported, and models that exist already, also in
    TorchScript and ``torch.compile``. No name and no attribute changes.

    Results are torchvision's: the same indices in the same order from NMS, bit for bit; floating
    point results within rounding, so that only a box within rounding of a threshold could differ.
    They differ by design where torchvision's are not defined: a ratio of overlaps without a value
    (0 / 0) is 0 and not NaN; a batch index out of range is an error and not a read out of bounds;
    and the gradient of ps_roi_pool skips the last row and column of a map, as its output does.
    Not touched are quantized tensors, devices other than CPU and (if built for it) CUDA, ONNX
    export and traces. Scripts hold torchvision's functions, and run on these kernels.

    Patches nest, and a patch that was restored patches again when it is used in another ``with``;
    everything is back when the last one is restored, whatever their order. They hold
    for the process: other threads are patched too, and a call that is under way in another thread
    while the patch begins or ends may use either.

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
