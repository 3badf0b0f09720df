import math

import pytest
import torch
from cases_riroi_align_rotated import CASES
from pool_inputs import LAYOUTS, feature_map

import detops
from detops.bench.riroi_align_rotated import plain_riroi_align_rotated


def test_rotation_by_full_steps_permutes_the_orientations(isa, device):
    """The square box pools to the same values at each angle, except for the channel order."""
    x = feature_map(1, 16, 12, 12, device=device).detach()
    rois = torch.tensor([[0.0, 6, 6, 4, 4, 90.0 * i] for i in range(-4, 5)], device=device)
    pooled = detops.riroi_align_rotated(x, rois, 1, 1.0, 2, 4)[:, :, 0, 0].unflatten(1, (4, 4))
    for i in range(9):
        expected = pooled[0].roll(i, 1)
        torch.testing.assert_close(pooled[i], expected, rtol=0, atol=1e-5)


def test_benchmark_baseline_matches_riroi_align_rotated():
    generator = torch.Generator().manual_seed(1)
    x = feature_map(1, 16, 25, 21)
    centre = torch.rand(30, 2, generator=generator) * 110 - 16
    side = torch.rand(30, 2, generator=generator) * 48 + 4
    angle = torch.rand(30, 1, generator=generator) * 800 - 400
    rois = torch.cat([torch.zeros(30, 1), centre, side, angle], 1)
    found = detops.riroi_align_rotated(x, rois, 7, 0.25, 2)
    expected = plain_riroi_align_rotated(x, rois)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zero_weight_ignores_nonfinite_values(isa, device, layout):
    x = torch.ones(1, 8, 6, 6, device=device).contiguous(memory_format=layout)
    x[:, 3] = math.inf
    rois = torch.tensor([[0.0, 2, 2, 1, 1, 90]], device=device)
    pooled = detops.riroi_align_rotated(x, rois, 1, 1.0, 1, 8)[0, :, 0, 0]
    assert pooled.tolist() == [1, 1, 1, 1, 1, math.inf, 1, 1]
    grad = torch.ones(1, 8, 1, 1, device=device)
    grad[:, 5] = math.nan
    grad_x = torch.ops.detops.riroi_align_rotated_backward(
        grad, rois, 1.0, 1, 1, 1, 8, 6, 6, 1, 8, False
    )
    assert grad_x[:, 3].isnan().any() and grad_x[:, [0, 1, 2, 4, 5, 6, 7]].isfinite().all()


def test_riroi_align_rotated_rejects_invalid_orientation_counts():
    tensors = CASES[0].tensors(channels=12)
    for orientations, message in (
        (8, r"input must have a multiple of num_orientations \(8\) channels, got 12"),
        (0, "num_orientations must be at least 1, got 0"),
    ):
        with pytest.raises(RuntimeError, match=f"detops.riroi_align_rotated: {message}"):
            CASES[0].with_options(num_orientations=orientations)(tensors)
