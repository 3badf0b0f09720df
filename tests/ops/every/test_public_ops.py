"""Every public function is a dispatcher op of the same name, and differentiable."""

import inspect

import pytest
import torch
from raw_calls import arguments
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import detops

PUBLIC = sorted(
    name
    for name in detops.ops.__all__
    if inspect.isfunction(getattr(detops, name)) and name != "register_tensor_methods"
)
# They return indices, masks, text or a choice; overlaps of rotated boxes have no derivative.
WITHOUT_DERIVATIVE = {
    *("nms", "batched_nms", "nms_padded", "nms_rotated", "batched_nms_rotated", "soft_nms"),
    "nms_match",
    *("matrix_nms", "match_boxes", "box_iou_rotated", "masks_to_boxes", "masks_to_rle"),
    *("paste_masks_in_image", "remove_small_boxes", "linear_assignment"),
    *("mask_iou", "mask_nms", "weighted_box_fusion", "convex_iou", "min_area_polygons"),
    *("points_in_polygons", "box_iou_quadri", "nms_quadri", "heatmaps_to_keypoints"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_function_has_an_op_of_the_same_name(name):
    assert getattr(detops._C, name) is getattr(torch.ops.detops, name)


def floating_tensors(args):
    return [x for x in tree_leaves(args) if isinstance(x, Tensor) and x.is_floating_point()]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT_DERIVATIVE])
def test_op_is_differentiable(name):
    args = arguments(name)
    leaves = tree_map_only(Tensor, lambda x: x.clone(), args)
    for x in floating_tensors(leaves):
        x.requires_grad_()
    results = tree_leaves(getattr(torch.ops.detops, name)(**leaves))
    assert all(
        torch.equal(result.detach(), expected)
        for result, expected in zip(
            results, tree_leaves(getattr(torch.ops.detops, name)(**args)), strict=True
        )
    )
    sum(result.sum() for result in results).backward()
    assert any(x.grad is not None and x.grad.abs().sum() > 0 for x in floating_tensors(leaves))
