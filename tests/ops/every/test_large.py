"""Feature maps, boxes, results and gradients of more than 2^31 elements.

They need up to 18 GiB and a few minutes. ``make large`` sets DETOPS_LARGE=1, which enables them.
"""

import os
from pathlib import Path

import pytest
import torch

import detops

SIDE = 33_000  # side of a feature map with two channels
CORNER = 64  # side of the nonzero corner of its last channel, which the tests compare
ELEMENTS = 2**31 + 12_345

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("DETOPS_LARGE"), reason="needs 18 GiB: make large"),
    pytest.mark.skipif(detops._C.emulated, reason="tests CPU kernels"),
]


def require_memory(gigabytes):
    """Skips the test unless that much memory is free."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if int(lines["MemAvailable"].split()[0]) < gigabytes << 20:
        pytest.skip(f"needs {gigabytes} GiB of free memory")


@pytest.fixture(scope="module")
def corner():
    x = torch.randn(1, 2, CORNER, CORNER).half()
    x[:, 0] = 0
    return x


@pytest.fixture(scope="module")
def large(corner):
    """Returns a feature map of zeros with the corner in its last rows and columns."""
    require_memory(10)
    x = torch.zeros(1, 2, SIDE, SIDE, dtype=torch.float16)
    assert x.numel() > 2**31
    x[..., -CORNER:, -CORNER:] = corner
    return x


# Samples of 3 x 3 bins lie on eighths of a pixel, exact in float32 even at the far end of the
# feature map.
BOXES = torch.tensor([[0, 3.0, 5, 30, 42.5], [0, 20.25, 8, 59.25, 59], [0, 1, 1, 2.5, 61]])


def shift_to_corner(boxes):
    """Moves the boxes to the corner of the large feature map."""
    return boxes + torch.tensor([0.0] + [SIDE - CORNER] * 4)


@pytest.mark.parametrize("op", ["roi_align", "roi_align_max", "prroi_pool", "ps_roi_align"])
def test_sampled_rois_of_a_large_map_match_a_small_map(op, corner, large):
    options = {"output_size": 1 if op.startswith("ps") else 3}
    if op != "prroi_pool":
        options["sampling_ratio"] = 2
    pool = getattr(detops, op)
    found = pool(large, shift_to_corner(BOXES), **options)
    torch.testing.assert_close(found, pool(corner, BOXES, **options))
    assert found.any()


@pytest.mark.parametrize("op", ["roi_pool", "ps_roi_pool"])
def test_pooled_pixels_of_a_large_map_match_a_small_map(op, corner, large):
    pool = getattr(detops, op)
    found = pool(large, shift_to_corner(BOXES), 1)
    torch.testing.assert_close(found, pool(corner, BOXES, 1))
    assert found.any()


def test_rotated_rois_of_a_large_map_match_a_small_map(corner, large):
    boxes = torch.tensor([[0.0, 30, 32, 20, 12, 30], [0, 40.5, 20, 9, 22, -75]])
    moved = boxes + torch.tensor([0, SIDE - CORNER, SIDE - CORNER, 0, 0, 0])
    torch.testing.assert_close(
        detops.roi_align_rotated(large, moved, 3, sampling_ratio=2),
        detops.roi_align_rotated(corner, boxes, 3, sampling_ratio=2),
        rtol=0.02,
        atol=0.02,  # a coordinate is exact to 1/512 pixel there
    )


def test_gradient_of_a_large_map_matches_a_small_map(corner):
    require_memory(18)
    grad = torch.rand(len(BOXES), 2, 3, 3).half()
    options = (1.0, 3, 3, 1, 2)
    small = torch.ops.detops.roi_align_backward(grad, BOXES, *options, CORNER, CORNER, 2, False)
    found = torch.ops.detops.roi_align_backward(
        grad, shift_to_corner(BOXES), *options, SIDE, SIDE, 2, False
    )
    assert found.numel() > 2**31
    torch.testing.assert_close(found[..., -CORNER:, -CORNER:], small)
    assert found[0, 1, -CORNER:].any() and not found[:, :, : -CORNER - 1].any()


@pytest.mark.parametrize("op", ["roi_pool", "roi_align_rotated", "point_sample", "deform_conv2d"])
def test_ops_reject_feature_maps_of_too_many_pixels(op):
    """These ops index pixels with int32. The feature map is one expanded element."""
    side = 46_400
    x = torch.zeros(1).expand(1, 1, side, side)
    others = {
        "roi_pool": (BOXES, 3),
        "roi_align_rotated": (torch.rand(1, 6), 3),
        "point_sample": (torch.rand(1, 1, 2),),
        "deform_conv2d": (torch.zeros(1, 18, 1, 1), torch.zeros(1, 1, 3, 3), None, side),
    }
    for device in ("cpu", "meta"):
        arguments = [t.to(device) if isinstance(t, torch.Tensor) else t for t in (x, *others[op])]
        with pytest.raises(RuntimeError, match=rf"detops.{op}: .* got {side} x {side}"):
            getattr(detops, op)(*arguments)


def test_points_of_a_large_map_match_a_small_map(corner, large):
    coordinates = torch.rand(1, 9, 2) * (CORNER - 2) + 1 + SIDE - CORNER
    coordinates = (coordinates * 4).round() / 4  # in pixels
    found = detops.point_sample(large, (coordinates.double() / SIDE).float())
    expected = detops.point_sample(corner, (coordinates - (SIDE - CORNER)) / CORNER)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_corner_pool_of_a_large_map_matches_a_small_map(corner, large):
    require_memory(10)
    found = detops.corner_pool(large, "left")
    assert torch.equal(found[..., -CORNER:, -CORNER:], detops.corner_pool(corner, "left"))


def test_results_may_have_more_than_two_billion_elements():
    require_memory(8)
    x = torch.randn(1, 16, 9, 9).half()
    boxes = torch.tensor([[0.0, 1, 1, 7, 7]]).repeat(ELEMENTS // (16 * 49) + 1, 1)
    found = detops.roi_align(x, boxes, 7, sampling_ratio=1)
    assert found.numel() > 2**31
    assert torch.equal(found[-1], found[0]) and torch.equal(found[len(boxes) // 2], found[0])


def test_overlaps_of_many_boxes_match_a_small_call():
    require_memory(12)
    boxes = torch.rand(46_400, 4) * 50
    boxes[:, 2:] += boxes[:, :2]
    found = detops.box_iou(boxes, boxes)
    assert found.numel() > 2**31
    assert torch.equal(found[-3:], detops.box_iou(boxes[-3:], boxes))
    del found
    best, index = detops.match_boxes(boxes, boxes)
    assert torch.equal(index[-3:], detops.match_boxes(boxes[-3:], boxes)[1])


def test_mask_ops_accept_more_than_two_billion_pixels():
    require_memory(6)
    masks = torch.zeros(3, 30_000, 30_000, dtype=torch.bool)
    assert masks.numel() > 2**31
    masks[1:, -40:-20, 29_000:29_100] = True
    masks[2, 5, 7] = True
    expected = [[0.0, 0, 0, 0], [29_000, 29_960, 29_099, 29_979], [7, 5, 29_099, 29_979]]
    assert detops.masks_to_boxes(masks).tolist() == expected
    overlaps = detops.mask_iou(masks[1:], masks[1:])
    torch.testing.assert_close(overlaps[0, 1].item(), 2000 / 2001)
    assert len(detops.masks_to_rle(masks)) == 3


def test_last_of_many_pasted_masks_equals_a_single_mask():
    require_memory(6)
    masks = torch.rand(250, 1, 28, 28)
    boxes = torch.tensor([[2900.0, 2900, 2990, 2995]]).repeat(250, 1)
    found = detops.paste_masks_in_image(masks, boxes, (3000, 3000))
    assert found.numel() > 2**31
    single = detops.paste_masks_in_image(masks[-1:], boxes[-1:], (3000, 3000))
    assert torch.equal(found[-1], single[0]) and single.any()


def test_attention_samples_the_last_of_many_positions():
    require_memory(6)
    side, channels = 8192, 33
    value = torch.zeros(1, side * side, 1, channels, dtype=torch.float16)
    assert value.numel() > 2**31
    value[0, -1] = 1
    shapes, start = torch.tensor([[side, side]]), torch.tensor([0])
    location = torch.full((1, 1, 1, 1, 1, 2), 1 - 0.5 / side)
    found = detops.ms_deform_attn(value, shapes, start, location, torch.ones(1, 1, 1, 1, 1))
    torch.testing.assert_close(found.float(), torch.ones(1, 1, channels), rtol=0.01, atol=0.01)


def test_last_losses_of_many_logits_match_a_small_call():
    require_memory(14)
    logits = torch.zeros(ELEMENTS, dtype=torch.float16)
    targets = torch.zeros(ELEMENTS, dtype=torch.float16)
    logits[-1] = targets[-1] = 1
    found = detops.sigmoid_focal_loss(logits, targets)
    assert torch.equal(found[-2:], detops.sigmoid_focal_loss(logits[-2:], targets[-2:]))


def test_demo_ops_compute_the_last_of_many_elements():
    require_memory(14)
    x = torch.zeros(ELEMENTS, dtype=torch.float16)
    x[-1] = 3
    assert detops.axpy(x, x)[-2:].tolist() == [0, 9]
    assert detops.gdh(x.view(1, -1)[:, ::2].t())[-1] == 3
