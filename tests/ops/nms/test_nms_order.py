"""Selection order of NMS, for each method by which a GPU finds it."""

import math

import pytest
import reference
import torch
from torchvision.ops import nms as torchvision_nms

import detops
from detops.bench.case import clustered


@pytest.mark.parametrize("count", [60, 5000])  # ranked and sorted on a GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nms_selects_nan_of_either_sign_first(device, dtype, count):
    scores = torch.rand(count, generator=torch.Generator().manual_seed(0)).to(dtype)
    scores[3::9], scores[4::9] = math.inf, -math.inf
    scores[5::9] = -scores[5::9]
    scores[6::9], scores[7::9] = 0.0, -0.0
    scores[::4] = math.nan
    bits = scores.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[scores.element_size()])
    bits[::8] |= torch.iinfo(bits.dtype).min
    bits[4::8] &= torch.iinfo(bits.dtype).max
    assert scores[::4].isnan().all() and 0 < scores[::4].signbit().sum() < count // 4
    left = torch.arange(count)[:, None] * torch.tensor([2.0, 0.0])
    boxes = torch.cat([left, left + 1], 1).to(device)
    ranks = scores.double().nan_to_num(math.nan, 1e300, -1e300).nan_to_num(math.inf)
    expected = ranks.sort(stable=True, descending=True).indices
    assert torch.equal(detops.nms(boxes, scores.to(device), 0.5).cpu(), expected)
    strided = torch.stack([scores, scores], 1).to(device)[:, 0]
    assert torch.equal(detops.nms(boxes, strided, 0.5).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [1, 3])
def test_batched_nms_matches_torchvision_on_many_boxes(device, labels, dtype):
    generator = torch.Generator().manual_seed(0)
    boxes, scores = (t.to(dtype) for t in clustered(generator, 17_000))
    scores = (scores * 1000).round() - 500
    idxs = torch.randint(labels, (17_000,), generator=generator)
    expected = reference.batched_nms(boxes, scores, idxs, 0.5, torchvision_nms)
    keep = detops.batched_nms(boxes.to(device), scores.to(device), idxs.to(device), 0.5)
    assert torch.equal(keep.cpu(), expected)
    assert keep.is_contiguous() and keep.untyped_storage().nbytes() <= 2 * keep.nbytes
