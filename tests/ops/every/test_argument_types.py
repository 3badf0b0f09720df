"""Argument types that torchvision accepts, with the same results as in torchvision."""

import inspect

import pytest
import torch
import torchvision

import detops

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OVERLAPS = ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou")
LOSSES = ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss")
# The differences that torchvision computes fit into int8 and uint8.
INTEGER_BOXES = torch.tensor([[0, 0, 10, 10], [2, 2, 12, 14], [0, 0, 90, 99], [50, 60, 51, 61]])
OTHER_BOXES = torch.tensor([[1, 0, 9, 12], [40, 40, 100, 90]])


def test_parameter_names_and_defaults_match_torchvision():
    # docs/ops.md gives the reason for the first; MLP is a different class of the same name.
    excluded = {"paste_masks_in_image", "MLP"}
    compared = 0
    for name in detops.ops.__all__:
        theirs = getattr(torchvision.ops, name, None)
        if theirs is None or name in excluded:
            continue
        ours = inspect.signature(getattr(detops, name)).parameters.values()
        theirs = inspect.signature(theirs).parameters.values()
        ours, extra = list(ours)[: len(theirs)], list(ours)[len(theirs) :]
        assert all(p.default is not p.empty for p in extra), name
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in theirs
        ], name
        compared += 1
    assert compared >= 25


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_of_integer_boxes_match_torchvision(name, dtype):
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    expected = theirs(INTEGER_BOXES, OTHER_BOXES)
    found = ours(INTEGER_BOXES.to(dtype), OTHER_BOXES.to(dtype))
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    for floating in (torch.float16, torch.float32, torch.float64):
        expected = theirs(INTEGER_BOXES, OTHER_BOXES.to(floating))
        found = ours(INTEGER_BOXES.to(dtype), OTHER_BOXES.to(floating))
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.fixture(params=[torch.float64, torch.float32, torch.float16, torch.bfloat16])
def default_dtype(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", [*OVERLAPS, *LOSSES])
def test_integer_boxes_give_the_default_dtype_like_torchvision(name, default_dtype):
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    flipped = INTEGER_BOXES.flip(0)
    expected = theirs(INTEGER_BOXES, flipped)
    wide = torch.promote_types(expected.dtype, torch.float32)
    half = default_dtype in (torch.float16, torch.bfloat16)
    for dtype in INTEGERS:
        found = ours(INTEGER_BOXES.to(dtype), flipped.to(dtype))
        assert found.dtype == wide
        bound = 2e-2 if half else 1e-5
        torch.testing.assert_close(found, expected.to(wide), rtol=bound, atol=bound)
    mixed = ours(INTEGER_BOXES, flipped.to(torch.float32))
    assert mixed.dtype == ours(INTEGER_BOXES.to(torch.float32), flipped).dtype == torch.float32


def test_area_and_convert_of_integer_boxes_match_torchvision(default_dtype):
    for ours, theirs, formats in (
        (detops.box_area, torchvision.ops.box_area, ("xyxy",)),
        (detops.box_convert, torchvision.ops.box_convert, ("xyxy", "xywh")),
        (detops.box_convert, torchvision.ops.box_convert, ("xyxy", "cxcywh")),
        (detops.box_convert, torchvision.ops.box_convert, ("cxcywh", "xyxy")),
    ):
        torch.testing.assert_close(ours(INTEGER_BOXES, *formats), theirs(INTEGER_BOXES, *formats))


def test_formatted_and_batched_integer_boxes_match_torchvision():
    # Half of an odd side is not an integer.
    boxes = torch.tensor([[10, 10, 7, 5], [12, 9, 3, 8]])
    for fmt in ("xywh", "cxcywh"):
        expected = torchvision.ops.box_iou(boxes.float(), boxes.float(), fmt=fmt)
        torch.testing.assert_close(detops.box_iou(boxes, boxes, fmt=fmt), expected)
    batch = torch.stack([INTEGER_BOXES, INTEGER_BOXES.flip(0)])
    expected = torchvision.ops.box_iou(batch, OTHER_BOXES)
    torch.testing.assert_close(detops.box_iou(batch, OTHER_BOXES), expected)


def test_large_integer_boxes_are_compared_exactly():
    side = 2**25  # float32 cannot represent odd integers of this size
    boxes = torch.tensor([[side, 0, side + 1, 1], [side + 1, 0, side + 2, 1]])
    assert torch.equal(detops.box_iou(boxes, boxes), torch.eye(2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_errors_name_bool_and_complex_boxes(dtype):
    for name in OVERLAPS:
        with pytest.raises(RuntimeError, match="boxes1 must be float32"):
            getattr(detops, name)(INTEGER_BOXES.to(dtype), OTHER_BOXES.float())
    for name in LOSSES:
        with pytest.raises(RuntimeError, match="boxes1 must be float32"):
            getattr(detops, name)(INTEGER_BOXES.to(dtype), INTEGER_BOXES.float())


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_integer_boxes_match_torchvision(name, dtype):
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    boxes = INTEGER_BOXES[[1, 0, 2, 3]]
    found = ours(INTEGER_BOXES.to(dtype), boxes.to(dtype))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, theirs(INTEGER_BOXES, boxes), rtol=1e-5, atol=1e-6)
    found = ours(INTEGER_BOXES.to(dtype), boxes.float())
    torch.testing.assert_close(found, theirs(INTEGER_BOXES, boxes), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(4,), (1, 4), (5, 4), (3, 1, 4), (3, 5, 4)])
def test_losses_broadcast_like_torchvision(name, shape):
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    torch.manual_seed(0)
    a = torch.rand(3, 5, 4).cumsum(-1).requires_grad_()
    b = torch.rand(shape).cumsum(-1).requires_grad_()
    expected = theirs(a, b)
    torch.testing.assert_close(ours(a, b), expected)
    gradients = torch.autograd.grad(expected.sum(), (a, b))
    torch.testing.assert_close(
        torch.autograd.grad(ours(a, b, reduction="sum"), (a, b)), gradients, rtol=1e-4, atol=1e-5
    )
    # torchvision fills a mask of the first set's size, so it broadcasts only the second set.
    # detops broadcasts both.
    torch.testing.assert_close(ours(b, a), ours(b.expand_as(a), a))


@pytest.mark.parametrize("shape", [(3, 4), (2, 1), (1,), (2, 5)])
def test_losses_reject_boxes_that_do_not_broadcast(shape):
    for name in LOSSES:
        with pytest.raises(RuntimeError, match=rf"detops.{name}: boxes2 must be \[2, 4\]"):
            getattr(detops, name)(torch.rand(2, 4), torch.rand(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_batched_nms_accepts_floating_labels(dtype):
    torch.manual_seed(0)
    boxes, scores = torch.rand(300, 4).cumsum(1) * 20, torch.rand(300)
    rotated_boxes = torch.cat([boxes, torch.rand(300, 1) * 90], 1)
    labels = torch.randint(-4, 4, (300,))
    for function, b in ((detops.batched_nms, boxes), (detops.batched_nms_rotated, rotated_boxes)):
        expected = function(b, scores, labels, 0.3)
        assert torch.equal(function(b, scores, (labels / 8).to(dtype), 0.3), expected)
    found = detops.batched_nms(boxes, scores, labels.to(dtype), 0.3)
    assert torch.equal(found, torchvision.ops.batched_nms(boxes, scores, labels.to(dtype), 0.3))


def test_batched_nms_compares_floating_labels_exactly():
    boxes, scores = torch.tensor([[0.0, 0, 9, 9]]).expand(2, 4), torch.tensor([0.5, 0.6])

    def kept(a, b):
        return detops.batched_nms(boxes, scores, torch.tensor([a, b]), 0.5).tolist()

    assert kept(0.0, -0.0) == kept(1e-30, 1e-30) == [1]
    assert kept(1.0, 1.0 + 2**-23) == kept(0.1, 0.9) == [1, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("threshold", [0.5, -1.0])
def test_pasted_bool_and_uint8_masks_match_float_masks(dtype, threshold):
    masks = torch.eye(6).roll(1, 0)[None, None].expand(3, 1, 6, 6)
    boxes = torch.tensor([[0.0, 0, 20, 20], [3, 4, 30, 17], [-5, -5, 9, 9]])
    expected = detops.paste_masks_in_image(masks, boxes, (24, 32), threshold)
    found = detops.paste_masks_in_image(masks.to(dtype), boxes, (24, 32), threshold)
    assert expected.any() and torch.equal(found, expected)
