"""Every public op under ``torch.compile``, as one graph and with a dynamic number of boxes."""

from functools import partial

import pytest
import torch
from call import Call
from calls import CALLS
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

import detops
from detops.bench.case import clustered

pytestmark = pytest.mark.slow

# The dimension of each tensor whose size changes. Unlisted tensors keep their size.
BOXES = dict.fromkeys(("boxes", "scores", "idxs", "boxes1", "boxes2", "anchors", "deltas"), 0)
COUNTED_DIMENSIONS = {
    "deform_psroi_pooling": {"boxes": 0, "offset": 0},
    "deform_roi_pool": {"boxes": 0, "offset": 0},
    "deform_conv2d": {"input": 0, "offset": 0, "mask": 0},
    "ms_deform_attn": {"sampling_locations": 1, "attention_weights": 1},
    "border_align": {"boxes": 1},
    "point_sample": {"points": 1},
    "convex_iou": {"pointsets": 0},
    "convex_giou": {"pointsets": 0, "polygons": 0},
    "min_area_polygons": {"pointsets": 0},
    "points_in_polygons": {"points": 0},
    "carafe": {"features": 0, "masks": 0},
    "corner_pool": {"input": 0},
    "rotated_feature_align": {"features": 0, "boxes": 0},
    "active_rotated_filter": {"input": 0},
    "masked_conv2d": {"features": 0, "mask": 0},
    "sigmoid_focal_loss": {"inputs": 0, "targets": 0},
    "softmax_focal_loss": {"inputs": 0, "targets": 0},
    "chamfer_distance": {"points1": 1, "points2": 1},
    "masks_to_boxes": {"masks": 0},
    "heatmaps_to_keypoints": {"maps": 0, "boxes": 0},
    "mask_iou": {"masks1": 0, "masks2": 0},
    "mask_nms": {"masks": 0, "scores": 0},
    "weighted_box_fusion": {"boxes": 0, "scores": 0, "labels": 0},
    "linear_assignment": {"cost": 0, "num_objects": 0},
    "paste_masks_in_image": {"masks": 0, "boxes": 0},
    "axpy": {"x": 0, "y": 0},
    "gdh": {"x": 0},
    "mlp": {"input": 0},
    "lltm_cell": {"input": 0, "h": 0, "c": 0},
    "lltm": {"input": 1, "h": 0, "c": 0},
}
# Ops that compare all pairs: the second count differs from the first.
PAIRWISE = (
    "box_iou",
    "generalized_box_iou",
    "distance_box_iou",
    "complete_box_iou",
    "box_iou_rotated",
    "box_iou_quadri",
    "match_boxes",
)
COUNTS = (11, 2, 40, 7, 3, 29, 64, 5, 17, 100)


def _boxes(generator):
    return {"boxes": clustered(generator, 100)[0]}


def _rotated_pairs(generator):
    boxes = torch.rand(100, 5, generator=generator) * torch.tensor([60.0, 60, 40, 40, 360]) + 1
    return {"boxes1": boxes, "boxes2": boxes.roll(1, 0)}


def _pool_levels(boxes, high, low):
    pooler = detops.MultiScaleRoIAlign(["high", "low"], 3, 2, canonical_scale=30)
    return pooler({"high": high, "low": low}, [boxes[1:], boxes[:1]], [(64, 64), (64, 48)])


def _two_levels(generator):
    maps = {n: torch.randn(2, 5, s, s, generator=generator) for n, s in (("high", 16), ("low", 8))}
    return maps | {"boxes": torch.rand(50, 4, generator=generator).cumsum(1) * 20}


def _list_of_boxes(boxes, input):
    return detops.roi_align(input, [boxes, boxes[:1]], 3, 0.25, 2)


def _one_map(generator):
    x = torch.randn(2, 5, 16, 16, generator=generator)
    return {"input": x, "boxes": torch.rand(50, 4, generator=generator).cumsum(1) * 20}


ALL_CALLS = [
    *CALLS,
    Call("box_area", detops.box_area, _boxes, ("boxes",)),
    Call("box_convert", partial(detops.box_convert, in_fmt="xyxy", out_fmt="cxcywh"), _boxes),
    Call("clip_boxes_to_image", partial(detops.clip_boxes_to_image, size=(50, 60)), _boxes),
    Call("remove_small_boxes", partial(detops.remove_small_boxes, min_size=20), _boxes),
    Call("box_iou of cxcywh", partial(detops.box_iou, fmt="cxcywh"),
         lambda g: {"boxes1": _boxes(g)["boxes"], "boxes2": _boxes(g)["boxes"]}),
    # giou runs without gradients: giou and diou sum them in another order.
    Call("rotated_iou_loss", detops.rotated_iou_loss, _rotated_pairs, ("boxes1", "boxes2")),
    Call("rotated_iou_loss, giou", partial(detops.rotated_iou_loss, mode="giou"), _rotated_pairs),
    Call("MultiScaleRoIAlign", _pool_levels, _two_levels, ("high", "low")),
    Call("roi_align of a list", _list_of_boxes, _one_map, ("input",)),
]  # fmt: skip


def op(call):
    return call.name.replace(",", " ").split()[0]


CALL_PER_OP = {op(call): call for call in reversed(ALL_CALLS)}


def parametrize_calls(calls):
    """Yields each call without gradients, and with gradients if it has any."""
    for call in calls:
        for gradient in (False, True)[: 1 + bool(call.differentiable)]:
            kind = ", gradient" * gradient
            marks = () if call in CALL_PER_OP.values() else pytest.mark.exhaustive
            yield pytest.param(call, gradient, id=f"{call.name}{kind}", marks=marks)


def resized(call, count, seed=0):
    """Returns the tensors of the call, resized to ``count`` entries."""
    tensors = call.tensors(seed=seed)
    for name, dim in COUNTED_DIMENSIONS.get(op(call), BOXES).items():
        if name in tensors:
            x = tensors[name].detach()
            pairs = "aligned" in call.name or call.name.endswith(" of pairs")
            pairwise = op(call) in PAIRWISE and not pairs
            size = count + 3 if name == "boxes2" and pairwise else count
            x = x.index_select(dim, torch.arange(size) % x.size(dim))
            tensors[name] = x.requires_grad_(name in call.differentiable)
    return tensors


class Compiled:
    """A compiled function that counts its compilations."""

    def __init__(self, function):
        def wrapper(**tensors):
            return function(**tensors)

        torch.compiler.reset()
        self.code = wrapper.__code__
        self.call = torch.compile(wrapper, fullgraph=True, dynamic=True, backend="aot_eager")

    def __call__(self, **tensors):
        return self.call(**tensors)

    def count(self):
        return len(_debug_get_cache_entry_list(self.code))


def results(call, function, tensors):
    outputs = function(**tensors)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if not torch.is_grad_enabled():
        return outputs
    return [o.detach() for o in outputs] + call.backward(tensors, outputs)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_calls_cover_every_public_function():
    functions = {name for name in detops.ops.__all__ if name == name.lower()}
    # The first returns dicts, the second changes a class: neither has anything to compile.
    assert functions - {"masks_to_rle", "register_tensor_methods"} <= {
        op(call) for call in ALL_CALLS
    }


@pytest.mark.parametrize(("call", "gradient"), parametrize_calls(ALL_CALLS))
def test_compiled_op_matches_eager_for_any_count(call, gradient):
    function = Compiled(call.function)
    with torch.set_grad_enabled(gradient):
        for count in COUNTS:
            tensors = resized(call, count)
            expected = results(call, call.function, tensors)
            assert_same(results(call, function, tensors), expected)
    assert 1 <= function.count() <= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize(("call", "gradient"), parametrize_calls(CALL_PER_OP.values()))
def test_compiled_op_matches_eager_after_nms(call, gradient):
    dims = COUNTED_DIMENSIONS.get(op(call), BOXES)

    def after_nms(candidates, ratings, **tensors):
        keep = detops.nms(candidates, ratings, 0.5)
        chosen = {
            name: x.index_select(dims[name], keep) if name in dims else x
            for name, x in tensors.items()
        }
        return call.function(**chosen)

    function = Compiled(after_nms)
    with torch.set_grad_enabled(gradient):
        for seed in range(10):
            candidates, ratings = clustered(torch.Generator().manual_seed(seed), 40)
            tensors = resized(call, 40, seed) | {"candidates": candidates, "ratings": ratings}
            expected = results(call, after_nms, tensors)
            assert_same(results(call, function, tensors), expected)
    assert 1 <= function.count() <= 2
