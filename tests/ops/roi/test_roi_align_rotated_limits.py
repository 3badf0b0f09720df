"""roi_align_rotated with odd, empty and invalid inputs."""

import math
import time

import pytest
import reference_sparse_pool as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_inputs import LAYOUTS, feature_map
from rotated_inputs import rois_for, with_gradient

import detops
from detops._C import roi_align_rotated_backward


@pytest.mark.parametrize("index", [2, -1, 7, 1e6, -30000, math.nan, math.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked, index, layout):
    x = feature_map(2, 3, 5, 5, layout=layout, device=device).detach()
    rois = rois_for(2, 3, 5.0).to(device)
    rois[1, 0] = index
    grad = torch.ones(3, 3, 2, 2, device=device)
    message = r"detops.roi_align_rotated(_backward)?: boxes\[1, 0\] is a batch index"
    if values_are_checked:
        with pytest.raises(RuntimeError, match=message):
            detops.roi_align_rotated(x, rois, 2)
        with pytest.raises(RuntimeError, match=message):
            roi_align_rotated_backward(grad, rois, 1.0, 2, 2, *x.shape, 2)
    else:
        assert (detops.roi_align_rotated(x, rois, 2)[1] == 0).all()
        expected = roi_align_rotated_backward(grad[:2], rois[[0, 2]], 1.0, 2, 2, *x.shape, 2)
        ours = roi_align_rotated_backward(grad, rois, 1.0, 2, 2, *x.shape, 2)
        assert torch.equal(ours, expected)


ODD_BOXES = {
    "nan": [math.nan, 0, 5, 5, 0],
    "nan angle": [4, 4, 5, 5, math.nan],
    "infinite angle": [4, 4, 5, 5, math.inf],
    "large angle": [4, 4, 5, 5, 1e30],
    "infinite size": [0, 0, math.inf, 5, 30],
    "infinite centre": [-math.inf, 3, 5, 5, 30],
    "million": [0, 0, 1e6, 1e6, 30],
    "billion": [0, 0, 1e9, 1e9, 30],
    "1e30": [-1e30, 1e30, 1e30, 1e30, 45],
    "far away": [1e9, 1e9, 64, 64, 10],
    "long and thin": [8, 8, 1e6, 1e-3, 45],
    "empty": [8, 8, 0, 0, 45],
    "negative": [8, 8, -5, 5, 45],
}


@pytest.mark.parametrize("box", ODD_BOXES.values(), ids=ODD_BOXES.keys())
@pytest.mark.parametrize("sampling_ratio", [-1, 2, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_odd_boxes_pool_to_finite_values(device, box, sampling_ratio, layout):
    x = feature_map(1, 3, 16, 16, device=device, layout=layout)
    rois = torch.tensor([[0.0, *box], [0, 5, 5, 8, 8, 20]], device=device)
    began = time.perf_counter()
    pooled, grad, _ = with_gradient(x, rois, 7, 1.0, sampling_ratio)
    assert time.perf_counter() - began < 5
    assert pooled.isfinite().all() and grad.isfinite().all()
    alone = detops.roi_align_rotated(x, rois[1:], 7, 1.0, sampling_ratio)
    assert torch.equal(pooled[1:], alone)


@pytest.mark.parametrize("size", [(-5.0, 4.0), (5.0, -4.0), (0.0, 4.0), (0.0, 0.0)])
def test_negative_sides_mirror_the_bins(device, size):
    x = feature_map(1, 2, 12, 12, device=device)
    rois = torch.tensor([[0, 6, 6, *size, 30]], device=device)
    assert (detops.roi_align_rotated(x, rois, 3) == 0).all()
    ours = detops.roi_align_rotated(x, rois, 3, 1.0, 2)
    upright = rois.clone()
    upright[:, 3:5] = upright[:, 3:5].abs()
    expected = detops.roi_align_rotated(x, upright, 3, 1.0, 2)
    mirrored = [d for d, s in ((3, size[0]), (2, size[1])) if s < 0]
    torch.testing.assert_close(ours, expected.flip(mirrored), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("angle", [0.0, 1e-3, 30.0, 90.0, -135.0, 179.9])
@pytest.mark.parametrize("side", [100.0, 700.0])
def test_large_adaptive_boxes_skip_only_samples_outside(device, angle, side):
    x = feature_map(1, 2, 9, 13, device=device)
    rois = torch.tensor([[0, 4.125, 5.25, side, side * 0.7, angle]])
    expected = reference.roi_align_rotated(x.cpu(), rois, (2, 3), 1.0, -1)
    ours = detops.roi_align_rotated(x.double(), rois.double().to(device), (2, 3), 1.0, -1)
    torch.testing.assert_close(ours.cpu(), expected, atol=1e-12, rtol=0)
    narrow = detops.roi_align_rotated(x, rois.to(device), (2, 3), 1.0, -1)
    torch.testing.assert_close(narrow.cpu().double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixels_outside_the_roi_do_not_leak_in(isa, device, layout):
    x = torch.full((1, 20, 14, 40), math.nan, device=device).contiguous(memory_format=layout)
    x[:, :, 2:10, 10:20] = 1.0
    rois = torch.tensor([[0.0, 15, 6, 5, 3, 30]], device=device)
    pooled = detops.roi_align_rotated(x, rois, 3, 1.0, 2)
    torch.testing.assert_close(pooled, torch.ones_like(pooled))
    grad = torch.ones(1, 20, 3, 3, device=device)
    spread = roi_align_rotated_backward(grad, rois, 1.0, 3, 3, 1, 20, 14, 40, 2)
    assert (spread[:, :, :2] == 0).all() and (spread[:, :, :, 20:] == 0).all()


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 3, 4, 4), 0), ((0, 3, 4, 4), 0), ((2, 0, 4, 4), 3)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_input_gives_empty_output_and_zero_gradient(device, shape, count, layout):
    x = feature_map(*shape, layout=layout, device=device)
    pooled = detops.roi_align_rotated(x, torch.zeros(count, 6, device=device), 2)
    assert pooled.shape == (count, shape[1], 2, 2)
    pooled.sum().backward()
    assert x.grad.shape == x.shape and (x.grad == 0).all()


def test_roi_align_rotated_accepts_strided_tensors(device):
    x = feature_map(2, 4, 18, 20, device=device).detach()[:, ::2, ::3, 1::2]
    rois = rois_for(2, 6, 8.0).repeat(1, 2).to(device)[:, ::1]
    strided = rois.t().contiguous().t()[:, :6]
    expected = detops.roi_align_rotated(x.contiguous(), rois[:, :6].contiguous(), 2)
    assert torch.equal(detops.roi_align_rotated(x, strided, 2), expected)


X, R = torch.zeros(1, 2, 4, 4), torch.zeros(3, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.roi_align_rotated(X, R[:, :5], 2),
         r"detops.roi_align_rotated: boxes must be \[K, 6\], got \[3, 5\]"),
        (lambda: detops.roi_align_rotated(X[0], R, 2),
         r"detops.roi_align_rotated: input must be \[N, C, H, W\], got \[2, 4, 4\]"),
        (lambda: detops.roi_align_rotated(X.long(), R, 2),
         "detops.roi_align_rotated: input must be float32"),
        (lambda: detops.roi_align_rotated(X, R.long(), 2),
         "detops.roi_align_rotated: boxes must be float32"),
        (lambda: detops.roi_align_rotated(X, R, (2, -1)),
         "detops.roi_align_rotated: output_size must be at least 1 x 1, got 2 x -1"),
        (lambda: detops.roi_align_rotated(X, R, 2, math.nan),
         "detops.roi_align_rotated: spatial_scale must be positive and finite, got nan"),
        (lambda: detops.roi_align_rotated(X, R, 2, 1.0, 65),
         "detops.roi_align_rotated: sampling_ratio must be at most 64, got 65"),
        (lambda: detops.roi_align_rotated(X, R.to("meta"), 2),
         "detops.roi_align_rotated: boxes must be on the device of input"),
        (lambda: detops.roi_align_rotated(X[:, :, :0], R, 2),
         "detops.roi_align_rotated: input must be .*H >= 1, W >= 1"),
        (lambda: roi_align_rotated_backward(X, R, 1.0, 4, 4, 1, 2, 8, 8, 2),
         r"detops.roi_align_rotated_backward: grad must be \[3, 2, 4, 4\], got \[1, 2, 4, 4\]"),
        (lambda: roi_align_rotated_backward(R.view(3, 2, 3, 1), R, 1.0, 3, 1, 1, 2, 0, 8, 2),
         r"detops.roi_align_rotated_backward: the input's size must be .*got \[1, 2, 0, 8\]"),
    ],
)  # fmt: skip
def test_roi_align_rotated_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call()


def test_list_of_wrong_boxes_raises():
    with pytest.raises(ValueError, match=r"_rotated: boxes\[1\] must be \[L, 5\], got \[3, 6\]"):
        detops.roi_align_rotated(X, [R[:, :5], R], 2)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 5), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([-1, 1, 2]),
    st.booleans(),
)
def test_any_boxes_pool_to_finite_values(boxes, size, sampling_ratio, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = feature_map(1, 2, 5, 6, layout=layout)
    rois = torch.tensor([[0.0, *b] for b in boxes])
    pooled, grad, _ = with_gradient(x, rois, size, 1.0, sampling_ratio)
    assert pooled.isfinite().all() and pooled.abs().max() <= x.abs().max() * (1 + 1e-5)
    assert grad.isfinite().all()
