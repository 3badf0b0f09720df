"""A detector of the maskrcnn-benchmark family, with detops._C in the place of its own `_C`."""

import pytest
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
def test_the_fourteen_names_are_there(name):
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
    """Deformable convolutions, three poolings, class scores and the focal loss."""
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
    # torchvision has no deformable pooling: the same in both, so that the whole can be compared.
    moved = DeformRoIPooling.apply(x, rois, p["trans"], 0.5, 3, 2, False, 2, 4, 0.1)
    features = torch.cat([t.flatten(1) for t in (aligned, pooled, moved)], 1)
    logits = features @ p["classes"].t()
    if theirs:
        dense = F.one_hot(targets.long().clamp(min=0), 6)[:, 1:].to(logits.dtype)
        loss = tv.sigmoid_focal_loss(logits, dense, 0.25, 2.0)
        loss = loss * (targets >= 0)[:, None]
    else:
        loss = SigmoidFocalLoss.apply(logits, targets, 2.0, 0.25)
    return logits, loss.sum()


def test_a_training_step_equals_torchvisions(device):
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


def test_boxes_sorted_by_score_keep_what_that_nms_keeps(device):
    g = torch.Generator().manual_seed(2)
    corner = torch.rand(50, 2, generator=g) * 40
    boxes = torch.cat([corner, corner + 20], 1).to(device)
    scores = torch.rand(50, generator=g).sort(descending=True).values.to(device)
    keep = _C.nms(boxes, scores, 0.5)
    # That project's result is in the order of the boxes, which its callers sort by score.
    assert torch.equal(keep, keep.sort().values)
    assert torch.equal(keep, tv.nms(boxes, scores, 0.5))
