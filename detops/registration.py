# SPDX-License-Identifier: MIT
"""What Python adds to the ops of ``torch.ops.detops``: fake tensors, derivatives, compositions."""

from collections.abc import Callable
from typing import Any

import torch

from . import _C
from .contract import Contract, read

CONTRACTS: dict[str, Contract] = read(_C.contracts)
_LIBRARY = torch.library.Library("detops", "IMPL")

for _contract in CONTRACTS.values():
    if _contract.outputs:
        torch.library.register_fake(f"detops::{_contract.op}", _contract.fake, lib=_LIBRARY)


# Under autocast these compute and return float32. The RoI ops are not here: they take features of
# any dtype with boxes of any other, and accumulate in float32 as it is.
IN_FLOAT32 = (
    "nms batched_nms nms_padded nms_match nms_rotated batched_nms_rotated nms_quadri soft_nms "
    "matrix_nms box_iou_forward box_iou_aligned_forward box_iou_loss_forward match_boxes "
    "box_iou_rotated rotated_iou rotated_iou_forward box_iou_quadri box_iou_quadri_pairs "
    "convex_iou convex_giou convex_giou_forward min_area_polygons encode_boxes_forward "
    "decode_boxes_forward sigmoid_focal_loss_forward sigmoid_focal_loss_sum "
    "softmax_focal_loss_forward chamfer_distance_forward chamfer_distance axpy mlp lltm_cell lltm "
    "encode_boxes decode_boxes"
).split()
_AUTOCAST = ("AutocastCPU", "AutocastCUDA")
_NO_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def in_float32(x: Any) -> Any:
    """What autocast makes of an argument of an op that computes in float32."""
    narrow = isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if narrow else x


def _autocast(op: str) -> Callable[..., Any]:
    overload = getattr(torch.ops.detops, op).default

    def cast(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_NO_AUTOCAST):
            return overload(*map(in_float32, args))

    return cast


for _op in IN_FLOAT32:
    for _key in _AUTOCAST:  # not register_autocast: 2.11's keeps what was registered last for both
        _LIBRARY.impl(_op, _autocast(_op), _key)


def _without_cuda(op: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"detops::{op}: detops has no CUDA kernels here and got tensors on a GPU; install a "
            "build with them, or a CUDA toolkit and rebuild with FORCE_CUDA=1"
        )

    return refuse


if _C.cuda_version is None:
    for _contract in CONTRACTS.values():
        if _contract.outputs:
            _LIBRARY.impl(_contract.op, _without_cuda(_contract.op), "CUDA")


def derivative(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function`` what the op does above its kernels: an autograd function over raw ops."""
    _above_transforms(op, "Autograd", function)


def implementation(op: str, key: str, function: Callable[..., Any]) -> None:
    """Makes ``function`` what the op does where the dispatcher comes to ``key``."""
    contract = CONTRACTS[op]

    def checked(*args: Any) -> Any:
        arguments = contract.bind(*args)
        contract.check_dense(arguments)
        return function(*arguments.values())

    _LIBRARY.impl(op, checked, key)


def composition(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function``, which calls other ops, the whole op."""
    _above_transforms(op, "CompositeImplicitAutograd", function)


def _above_transforms(op: str, key: str, function: Callable[..., Any]) -> None:
    """There autograd functions find the rules of torch.func; PyTorch comes to ``key`` below it."""
    for each in (key, "FuncTorchDynamicLayerFrontMode"):
        implementation(op, each, function)


def buffered(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function``, which writes into its arguments, the whole op; it has no derivative.

    The dispatcher would hand out copies of views of negated or conjugated elements, and a buffer
    that takes its size would then have another than the copy.
    """
    implementation(op, "CompositeExplicitAutograd", function)
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(op, torch.library.fallthrough_kernel, key)
