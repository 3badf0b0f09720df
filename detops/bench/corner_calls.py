# SPDX-License-Identifier: MIT
"""The two calls that a row of `detops bench corners` compares: ours and the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import _C, ops
from .case import Call, Case, gradients
from .corners import Corner
from .roi_align_rotated import plain_roi_align_rotated

PYRAMID = ("0", "1", "2", "3")


def _rois(corner: Corner, generator: torch.Generator) -> Tensor:
    """Returns square RoIs ``[K, 5]`` within the feature map, spread over the images."""
    side = corner.roi_side()
    corners = torch.rand(corner.rois, 2, generator=generator) * (corner.side - side)
    image = torch.arange(corner.rois).view(-1, 1) % corner.images
    return torch.cat([image, corners, corners + side], 1)


def _through_float32(call: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Casts to float32 and back, as callers of torchvision must for dtypes its op lacks."""

    def wide(first: Tensor, *rest: Any) -> Any:
        out = call(first.float(), *rest)
        return out[0].to(dtype) if isinstance(out, tuple) else out.to(dtype)

    return call if dtype == torch.float32 else wide


def _multiscale(corner: Corner, x: Tensor, rois: Tensor, grad: Tensor) -> tuple[Call, Call]:
    import torchvision

    form = _format(corner)
    levels = [torch.nn.functional.avg_pool2d(x.float(), 1 << i) for i in range(len(PYRAMID))]
    maps = [m.to(x.dtype).contiguous(memory_format=form) for m in levels]
    size, sampling = corner.size, corner.sampling
    # The image has 4 * side pixels per side.
    boxes, shapes = [4 * rois[:, 1:]], [(4 * corner.side, 4 * corner.side)]
    leaves = [m.requires_grad_(corner.direction == "backward") for m in maps]
    wide = leaves if x.dtype == torch.float32 else [m.detach().float() for m in maps]
    wide = [m.requires_grad_(corner.direction == "backward") for m in wide]

    def pool(kind: Any, inputs: list[Tensor]) -> Any:
        return kind(list(PYRAMID), size, sampling)(
            dict(zip(PYRAMID, inputs, strict=True)), boxes, shapes
        )

    if corner.direction == "backward":
        ours, theirs = (pool(t.MultiScaleRoIAlign, m) for t, m in
                        ((ops, leaves), (torchvision.ops, wide)))  # fmt: skip
        to_wide = gradients(theirs, wide, grad.float())
        if x.dtype == torch.float32:
            return gradients(ours, leaves, grad), to_wide
        return gradients(ours, leaves, grad), lambda: [g.to(x.dtype) for g in to_wide()]
    return (
        lambda: pool(ops.MultiScaleRoIAlign, maps),
        lambda: pool(torchvision.ops.MultiScaleRoIAlign, [m.float() for m in maps]).to(x.dtype),
    )


def _rotated(corner: Corner, x: Tensor, rois: Tensor, grad: Tensor) -> tuple[Call, Call]:
    generator = torch.Generator().manual_seed(1)
    centre, side = (rois[:, 1:3] + rois[:, 3:5]) / 2, rois[:, 3:5] - rois[:, 1:3]
    angle = torch.rand(corner.rois, 1, generator=generator) * 360
    boxes = torch.cat([rois[:, :1], centre, side, angle], 1)
    size, ratio = corner.size, corner.sampling
    if corner.direction == "forward":
        return (
            lambda: _C.roi_align_rotated_forward(x, boxes, 1.0, size, size, ratio),
            lambda: plain_roi_align_rotated(x, boxes, size, 1.0, ratio),
        )
    leaf = x.detach().requires_grad_()
    pooled = plain_roi_align_rotated(leaf, boxes, size, 1.0, ratio)
    return (
        lambda: _C.roi_align_rotated_backward(grad, boxes, 1.0, size, size, *x.shape, ratio),
        gradients(pooled, [leaf], grad),
    )


def _single(corner: Corner, x: Tensor, rois: Tensor, grad: Tensor) -> tuple[Call, Call]:
    import torchvision  # noqa: F401, its ops

    op, size = corner.op, corner.size
    theirs = getattr(torch.ops.torchvision, op)
    their_backward = getattr(torch.ops.torchvision, f"_{op}_backward")
    forward, backward = getattr(_C, f"{op}_forward"), getattr(_C, f"{op}_backward")
    extra = {"roi_align": (corner.sampling, False), "ps_roi_align": (corner.sampling,)}
    pooling = (1.0, size, size, *extra.get(op, ()))
    if corner.direction == "forward":
        other = _through_float32(theirs, x.dtype)
        return lambda: forward(x, rois, *pooling), lambda: other(x, rois, *pooling)
    geometry = (1.0, size, size, *x.shape)
    other = _through_float32(their_backward, x.dtype)
    if op == "roi_align":
        return (
            lambda: backward(grad, rois, *geometry, corner.sampling, False),
            lambda: other(grad, rois, *geometry, corner.sampling, False),
        )
    _, their_indices = theirs(x.float(), rois, *pooling)
    if op == "roi_pool":
        _, indices = forward(x, rois, *pooling)
        return (
            lambda: backward(grad, x, rois, indices, *geometry),
            lambda: other(grad, rois, their_indices, *geometry),
        )
    shape = (*pooling[:3], *pooling[3:], *x.shape)
    return (
        lambda: backward(grad, rois, *geometry, *pooling[3:]),
        lambda: other(grad, rois, their_indices, *shape),
    )


def _format(corner: Corner) -> torch.memory_format:
    return torch.channels_last if corner.layout == "channels_last" else torch.contiguous_format


def calls(corner: Corner) -> tuple[Call, Call]:
    """Returns our call and the baseline on the same inputs."""
    generator = torch.Generator().manual_seed(0)
    dtype, form = getattr(torch, corner.dtype), _format(corner)
    shape = (corner.images, corner.map_channels(), corner.side, corner.side)
    pooled = (corner.rois, corner.channels, corner.size, corner.size)
    x = torch.randn(shape, generator=generator).to(dtype).contiguous(memory_format=form)
    grad = torch.empty(0)
    if corner.direction == "backward":
        grad = torch.randn(pooled, generator=generator).to(dtype).contiguous(memory_format=form)
    rois = _rois(corner, generator)
    kinds = {"multiscale_roi_align": _multiscale, "roi_align_rotated": _rotated}
    return kinds.get(corner.op, _single)(corner, x, rois, grad)


def _with_gradient(call: Callable[..., Any], input: Tensor, *others: Any) -> Call:
    leaf = input.detach().requires_grad_()
    return lambda: call(leaf, *others).sum().backward()


def tiny() -> Iterator[Case]:
    """Yields public functions on 1 and 10 boxes and 1 RoI, to measure the overhead of a call."""
    import torchvision.ops as theirs

    generator = torch.Generator().manual_seed(0)
    for count in (1, 10):
        corner = torch.rand(count, 2, generator=generator) * 50
        boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(count, 2, generator=generator)], 1)
        scores, labels = torch.rand(count, generator=generator), torch.arange(count) % 3
        logits, targets = torch.randn(count, 4, generator=generator), torch.zeros(count, 4)
        masks = torch.ones(count, 28, 28, dtype=torch.bool)
        plain: dict[str, tuple] = {
            "nms": (boxes, scores, 0.5),
            "batched_nms": (boxes, scores, labels, 0.5),
            "box_area": (boxes,),
            "box_convert": (boxes, "xyxy", "cxcywh"),
            "clip_boxes_to_image": (boxes, (60, 60)),
            "remove_small_boxes": (boxes, 1.0),
            "masks_to_boxes": (masks,),
        }
        pairs = ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou")
        losses = (
            "generalized_box_iou_loss",
            "distance_box_iou_loss",
            "complete_box_iou_loss",
        )
        plain |= {name: (boxes, boxes + 1) for name in (*pairs, *losses)}
        plain["sigmoid_focal_loss"] = (logits, targets)
        name = f"{count} box{'es' * (count > 1)}"
        for op, arguments in plain.items():
            yield Case(
                op,
                name,
                partial(getattr(ops, op), *arguments),
                partial(getattr(theirs, op), *arguments),
            )
            if op in (*pairs, *losses, "sigmoid_focal_loss"):
                yield Case(
                    op,
                    f"{name}, with a gradient",
                    _with_gradient(getattr(ops, op), *arguments),
                    _with_gradient(getattr(theirs, op), *arguments),
                )
    yield from _tiny_rois(generator)


def _tiny_rois(generator: torch.Generator) -> Iterator[Case]:
    import torchvision.ops as theirs

    rois = torch.tensor([[0.0, 2, 3, 20, 24]])
    wide = torch.randn(1, 8 * 4, 32, 32, generator=generator)
    offset, weight = torch.randn(1, 18, 30, 30), torch.randn(4, 32, 3, 3)
    kinds: dict[str, tuple] = {
        "roi_align": (wide, rois, 2, 1.0, 2),
        "roi_pool": (wide, rois, 2, 1.0),
        "ps_roi_align": (wide, rois, 2, 1.0, 2),
        "ps_roi_pool": (wide, rois, 2, 1.0),
        "deform_conv2d": (wide, offset, weight),
    }
    poolers = {
        module: module.MultiScaleRoIAlign(["0", "1"], 2, 2)  # type: ignore[attr-defined]
        for module in (ops, theirs)
    }
    for op, arguments in kinds.items():
        name = "1 image" if op == "deform_conv2d" else "1 RoI"
        yield Case(
            op,
            name,
            partial(getattr(ops, op), *arguments),
            partial(getattr(theirs, op), *arguments),
        )
        yield Case(
            op,
            f"{name}, with a gradient",
            _with_gradient(getattr(ops, op), *arguments),
            _with_gradient(getattr(theirs, op), *arguments),
        )

    def pool(module: Any, x: Tensor) -> Any:
        return poolers[module]({"0": x, "1": x[:, :, ::2, ::2]}, [rois[:, 1:]], [(32, 32)])

    yield Case("multiscale_roi_align", "1 RoI", lambda: pool(ops, wide), lambda: pool(theirs, wide))
    yield Case(
        "multiscale_roi_align",
        "1 RoI, with a gradient",
        _with_gradient(lambda x: pool(ops, x), wide),
        _with_gradient(lambda x: pool(theirs, x), wide),
    )
