"""A detector of the maskrcnn-benchmark family, with detops._C in place of its own `_C`."""

import pytest
import reference_mmcv
import torch
import torch.nn.functional as F
import torchvision.ops as tv
from family_layers import (
    DeformConv,
    DeformRoIPooling,
    ModulatedDeformConv,
    RoIAlign,
    RoIPool,
    SigmoidFocalLoss,
)

from detops import _C
from detops.compat.maskrcnn_benchmark import contents
from detops.compat.thresholds import above, at_least, rounded_above, rounded_at_least

NAMES = [
    "nms",
    "roi_align_forward",
    "roi_align_backward",
    "roi_pool_forward",
    "roi_pool_backward",
    "sigmoid_focalloss_forward",
    "sigmoid_focalloss_backward",
    "deform_conv_forward",
    "deform_conv_backward_input",
    "deform_conv_backward_parameters",
    "modulated_deform_conv_forward",
    "modulated_deform_conv_backward",
    "deform_psroi_pooling_forward",
    "deform_psroi_pooling_backward",
]


@pytest.mark.parametrize("name", NAMES)
def test_extension_has_the_fourteen_names(name):
    assert getattr(_C, name) is getattr(torch.ops.detops, name)


def parameters(device):
    g = torch.Generator().manual_seed(0)

    def random(*shape, scale=0.3):
        return (torch.randn(*shape, generator=g) * scale).to(device).requires_grad_()

    return {
        "offset": random(18, 8, 3, 3),
        "offset_bias": random(18, scale=1.0),
        "first": random(8, 8, 3, 3),
        "mask": random(9, 8, 3, 3),
        "second": random(8, 8, 3, 3),
        "bias": random(8),
        "trans": random(6, 2, 3, 3),
        "classes": random(5, 8 * 9 + 8 * 9 + 2 * 9),
    }


def heads(p, images, rois, targets, theirs):
    """Computes deformable convolutions, three poolings, class scores and the focal loss."""
    offset = F.conv2d(images, p["offset"], p["offset_bias"], padding=1)
    mask = F.conv2d(images, p["mask"], padding=1).sigmoid()
    if theirs:
        x = tv.deform_conv2d(images, offset, p["first"], padding=1)
        x = tv.deform_conv2d(x.relu(), offset, p["second"], p["bias"], padding=1, mask=mask)
        aligned = tv.roi_align(x, rois, 3, 0.5, 2)
        pooled = tv.roi_pool(x, rois, 3, 0.5)
    else:
        x = DeformConv.apply(images, offset, p["first"], (1, 1), (1, 1), (1, 1), 1, 1)
        x = ModulatedDeformConv.apply(x.relu(), offset, mask, p["second"], p["bias"], 1, 1, 1, 1, 1)
        aligned = RoIAlign.apply(x, rois, 3, 0.5, 2)
        pooled = RoIPool.apply(x, rois, 3, 0.5)
    # torchvision has no deformable pooling, so both variants share ours.
    deformed = DeformRoIPooling.apply(x, rois, p["trans"], 0.5, 3, 2, False, 2, 4, 0.1)
    features = torch.cat([t.flatten(1) for t in (aligned, pooled, deformed)], 1)
    logits = features @ p["classes"].t()
    if theirs:
        dense = F.one_hot(targets.long().clamp(min=0), 6)[:, 1:].to(logits.dtype)
        loss = tv.sigmoid_focal_loss(logits, dense, 0.25, 2.0)
        loss = loss * (targets >= 0)[:, None]
    else:
        loss = SigmoidFocalLoss.apply(logits, targets, 2.0, 0.25)
    return logits, loss.sum()


def test_training_step_equals_torchvision(device):
    g = torch.Generator().manual_seed(1)
    images = torch.randn(2, 8, 12, 14, generator=g).to(device)
    corner = torch.rand(6, 2, generator=g) * 10
    rois = torch.cat(
        [torch.tensor([0.0, 1, 0, 1, 1, 0])[:, None], corner, corner + 4 + corner.flip(0)], 1
    ).to(device)
    targets = torch.tensor([1, 5, 0, -1, 3, 2], dtype=torch.int32, device=device)
    results = []
    for theirs in (False, True):
        p = parameters(device)
        logits, loss = heads(p, images, rois, targets, theirs)
        loss.backward()
        results.append([logits.detach(), loss.detach(), *(q.grad for q in p.values())])
    for ours, expected in zip(*results, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_nms_of_boxes_sorted_by_score_matches_torchvision(device):
    g = torch.Generator().manual_seed(2)
    corner = torch.rand(50, 2, generator=g) * 40
    boxes = torch.cat([corner, corner + 20], 1).to(device)
    scores = torch.rand(50, generator=g).sort(descending=True).values.to(device)
    keep = _C.nms(boxes, scores, 0.5)
    # maskrcnn-benchmark keeps the order of the boxes, which its callers sort by score.
    assert torch.equal(keep, keep.sort().values)
    assert torch.equal(keep, tv.nms(boxes, scores, 0.5))


def test_provided_module_has_the_fourteen_names():
    assert contents().keys() == set(NAMES)
    assert all(contents()[name] is getattr(_C, name) for name in NAMES if name != "nms")


@pytest.mark.parametrize("integral", [True, False])
def test_nms_counts_the_last_pixel_and_suppresses_at_threshold(integral):
    g = torch.Generator().manual_seed(3)
    corner = torch.rand(150, 2, generator=g) * 40
    boxes = torch.cat([corner, corner + torch.rand(150, 2, generator=g) * 20], 1)
    boxes = boxes.round() if integral else boxes
    scores = torch.rand(150, generator=g)
    nms = contents()["nms"]
    for threshold in (0.1, 0.5, 0.7):
        expected = reference_mmcv.nms(boxes, scores, threshold, 1, at_threshold=True)
        assert torch.equal(nms(boxes, scores, threshold), expected.sort().values)
    pair = torch.tensor([[0.0, 0, 9, 4], [0, 0, 9, 9]])  # an IoU of 0.5
    for dtype in (torch.float32, torch.float64):
        dets, ranked_scores = pair.to(dtype), torch.tensor([0.1, 0.2], dtype=dtype)
        assert nms(dets, ranked_scores, 0.5).tolist() == [1]
        assert nms(dets, ranked_scores, 0.5000001).tolist() == [0, 1]
    assert nms(boxes[:0], scores[:0], 0.5).shape == (0,)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.7, 1 / 3, 0.9999999, 1.0])
def test_thresholds_reproduce_comparisons_after_rounding(threshold):
    """Compares float32(x) with float32(threshold) for doubles x on both sides of the threshold."""
    bound = torch.tensor(threshold)
    ulp = (torch.nextafter(bound, torch.tensor(2.0)) - bound).double()
    steps = torch.arange(-40, 41, dtype=torch.double) / 16
    overlaps = bound.double() + steps * ulp
    assert torch.equal(overlaps > rounded_above(threshold), overlaps.float() > bound)
    assert torch.equal(overlaps > rounded_at_least(threshold), overlaps.float() >= bound)
    float32_overlaps = overlaps.float()
    assert torch.equal(
        float32_overlaps.double() > above(threshold, float32_overlaps), float32_overlaps > bound
    )
    assert torch.equal(
        float32_overlaps.double() > at_least(threshold, float32_overlaps), float32_overlaps >= bound
    )
    assert torch.equal(overlaps > at_least(threshold, overlaps), overlaps >= bound.double())
