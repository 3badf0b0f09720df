"""Replacements for functions of torchvision that are not dispatcher ops.

The first argument of each is torchvision's own function, which handles unsupported inputs. The
others are that function's arguments in order. Results match torchvision: the same detections, in
the same order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ... import _C, ops
from ...ops.boxes import ROTATED

Function = Callable[..., Any]


def _is_supported(*tensors: Tensor) -> bool:
    """Returns whether our kernels support these tensors, and no graph is traced for export."""
    devices = ("cpu",) if _C.cuda_version is None else ("cpu", "cuda")
    return not torch.jit.is_tracing() and all(t.device.type in devices for t in tensors)


def _are_floating(*tensors: Tensor) -> bool:
    return _is_supported(*tensors) and all(t.is_floating_point() for t in tensors)


def _are_full_precision(*tensors: Tensor) -> bool:
    """Excludes half precision: torchvision rounds more intermediate values, and some results."""
    return _is_supported(*tensors) and all(
        t.dtype in (torch.float32, torch.float64) for t in tensors
    )


def _batched_nms(
    original: Function, boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float
) -> Tensor:
    if not _are_floating(boxes, scores):
        return original(boxes, scores, idxs, iou_threshold)
    # torchvision ends with an unstable sort, so its input must have equal scores in the same order.
    keep = ops.batched_nms(boxes, scores, idxs, iou_threshold).sort().values
    return keep[scores[keep].sort(descending=True).indices]


def _multiscale_roi_align(
    original: Function,
    x_filtered: Sequence[Tensor],
    boxes: list[Tensor],
    output_size: Sequence[int],
    sampling_ratio: int,
    scales: Sequence[float] | None,
    mapper: Any,
) -> Tensor:
    maps = x_filtered
    # If scales are not consecutive powers of two, torchvision leaves the output of some boxes at
    # zero.
    is_pyramid = scales is not None and all(
        scale * 2**level == scales[0] and x.dtype == maps[0].dtype
        for level, (scale, x) in enumerate(zip(scales, maps, strict=False))
    )
    if not (is_pyramid and len(boxes) and mapper.eps == 1e-6 and _are_floating(*maps, *boxes)):
        return original(maps, boxes, output_size, sampling_ratio, scales, mapper)
    height, width = output_size
    pooled = ops.multiscale_roi_align(
        maps,
        boxes,
        (height, width),
        scales,  # type: ignore[arg-type]
        sampling_ratio,
        canonical_scale=mapper.s0,
        canonical_level=mapper.lvl0,
    )
    return pooled.contiguous()


def _paste_masks_in_image(
    original: Function, masks: Tensor, boxes: Tensor, img_shape: tuple[int, int], padding: int
) -> Tensor:
    # Autograd would copy all images once per mask for each in-place write.
    if torch.jit.is_tracing() or (masks.requires_grad and torch.is_grad_enabled()):
        return original(masks, boxes, img_shape, padding)
    from torchvision.models.detection import roi_heads

    # The values are torchvision's, a bilinear resize to whole pixels. But each mask is written
    # straight to its position, not first to a separate image that is then copied into the stack.
    masks, scale = roi_heads.expand_masks(masks, padding)
    boxes = roi_heads.expand_boxes(boxes, scale).to(torch.int64)
    height, width = img_shape
    pasted = masks.new_zeros(len(masks), 1, height, width)
    for image, mask, (x1, y1, x2, y2) in zip(pasted[:, 0], masks, boxes.tolist(), strict=True):
        size = (max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1))
        resized = F.interpolate(mask[None], size=size, mode="bilinear", align_corners=False)[0, 0]
        left, right = max(x1, 0), min(x2 + 1, width)
        top, bottom = max(y1, 0), min(y2 + 1, height)
        image[top:bottom, left:right] = resized[top - y1 : bottom - y1, left - x1 : right - x1]
    return pasted


def _overlap(
    replacement: Function, original: Function, boxes1: Tensor, boxes2: Tensor, *rest: Any
) -> Tensor:
    # Rotated boxes reach our kernel through torchvision's function, which returns float32.
    is_upright = rest[:1] not in ((fmt,) for fmt in ROTATED)
    function = replacement if is_upright and _are_full_precision(boxes1, boxes2) else original
    return function(boxes1, boxes2, *rest)


def _elementwise(
    replacement: Function, original: Function, inputs: Tensor, targets: Tensor, *rest: Any
) -> Tensor:
    # torchvision handles mixed shapes and dtypes itself.
    match = inputs.shape == targets.shape and inputs.dtype == targets.dtype
    function = replacement if match and _are_full_precision(inputs, targets) else original
    return function(inputs, targets, *rest)


def _masks_to_boxes(original: Function, masks: Tensor) -> Tensor:
    # torchvision drops the rows of masks without pixels, and accepts complex numbers.
    is_supported = masks.numel() > 0 and not masks.is_complex() and _is_supported(masks)
    return ops.masks_to_boxes(masks) if is_supported else original(masks)


# Keyed by module and name. Public functions call the private ones listed here, which behave the
# same in all versions of torchvision that we know.
FUNCTIONS: dict[tuple[str, str], Function] = {
    ("torchvision.ops.boxes", "_batched_nms_vanilla"): _batched_nms,
    ("torchvision.ops.poolers", "_multiscale_roi_align"): _multiscale_roi_align,
    ("torchvision.models.detection.roi_heads", "paste_masks_in_image"): _paste_masks_in_image,
    ("torchvision.ops.boxes", "masks_to_boxes"): _masks_to_boxes,
    ("torchvision.ops.focal_loss", "sigmoid_focal_loss"): partial(
        _elementwise, ops.sigmoid_focal_loss
    ),
    **{
        ("torchvision.ops.boxes", name): partial(_overlap, getattr(ops, name))
        for name in (
            "box_iou",
            "generalized_box_iou",
            "distance_box_iou",
            "complete_box_iou",
        )
    },
    **{
        (f"torchvision.ops.{module}", name): partial(_elementwise, getattr(ops, name))
        for module, name in (
            ("giou_loss", "generalized_box_iou_loss"),
            ("diou_loss", "distance_box_iou_loss"),
            ("ciou_loss", "complete_box_iou_loss"),
        )
    },
}
