import math

import pytest
import torch
from cases_deform_roi_pool import CASES

import detops
from detops.bench.deform_roi_pool import plain_deform_roi_pool

CASE = CASES[0]


def test_pooling_without_offsets_is_roi_align(device):
    tensors = CASE.tensors(device=device)
    options = {k: v for k, v in CASE.options.items() if k != "gamma"}
    aligned = detops.roi_align(tensors["input"], tensors["boxes"], **options, aligned=True)
    for offset in (None, torch.zeros_like(tensors["offset"])):
        torch.testing.assert_close(CASE(tensors | {"offset": offset}), aligned)


def test_benchmark_baseline_matches_deform_roi_pool():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 20, 30, generator=generator)
    boxes = torch.rand(4, 4, generator=generator).cumsum(1) * 60 + 40
    boxes = torch.cat([torch.zeros(4, 1), boxes], 1)
    offset = torch.randn(4, 2, 7, 7, generator=generator) / 10
    found = detops.deform_roi_pool(x, boxes, offset, 7, 1 / 16, 2, 0.1)
    torch.testing.assert_close(found, plain_deform_roi_pool(x, boxes, offset))


@pytest.mark.parametrize("offset_value", [math.nan, math.inf, 1e30, -1e30])
def test_bins_with_nonfinite_or_huge_offsets_pool_to_zero(device, offset_value):
    tensors = CASE.tensors(device=device)
    pooled = CASE(tensors | {"offset": torch.full_like(tensors["offset"], offset_value)})
    assert not pooled.any()


def test_deform_roi_pool_rejects_offsets_of_another_size():
    tensors = CASE.tensors()
    message = r"detops.deform_roi_pool: offset must be \[8, 2, 2, 3\]"
    with pytest.raises(RuntimeError, match=message):
        CASE(tensors | {"offset": tensors["offset"][..., :2]})
