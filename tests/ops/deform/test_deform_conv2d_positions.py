import math

import pytest
import reference_deform_conv2d as reference
import torch
import torchvision
from cases_deform_conv2d import LAYOUTS, arguments, as_double, check_all, gradients
from hypothesis import given, settings
from hypothesis import strategies as st

import detops

EXTREME_OFFSETS = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e9, -3e9]


@pytest.mark.parametrize("value", EXTREME_OFFSETS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nonfinite_and_huge_offsets_sample_zero(isa, device, value, axis):
    (x, offset, mask, weight, bias), window = arguments("plain", device=device)
    extreme = offset.detach().clone()
    extreme[:, 2 * 4 + axis, 2:5] = value  # the middle point
    extreme.requires_grad_()
    zero_mask = mask.detach().clone()
    zero_mask[:, 4, 2:5] = 0
    ours = gradients(detops.deform_conv2d, (x, extreme, mask, weight, bias), window)
    expected = gradients(
        torchvision.ops.deform_conv2d, as_double((x, offset, zero_mask, weight, bias)), window
    )
    for one in ours:
        assert one.isfinite().all()
    check_all(ours[:2] + ours[4:], expected[:2] + expected[4:])
    assert (ours[2][:, 8:10, 2:5] == 0).all() and (ours[3][:, 4, 2:5] == 0).all()
    for i in (2, 3):  # the other points keep their gradients
        assert (ours[i] != 0).double().mean() > 0.5


def test_sample_outside_reads_no_pixel(isa):
    x = torch.full((1, 33, 4, 4), math.nan)
    offset = torch.full((1, 2, 4, 4), 50.0)
    assert (detops.deform_conv2d(x, offset, torch.ones(2, 33, 1, 1)) == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_read_only_their_corner_pixels(isa, device, layout):
    # Other images, channels of other groups and pixels next to the samples hold NaN.
    x = torch.full((3, 70, 6, 6), math.nan, device=device)
    x[1, :20, 2:4, 2:4] = 1
    x = x.contiguous(memory_format=layout).requires_grad_()
    centre = torch.full((3, 14, 6, 6), 2.5, device=device)
    grid = torch.arange(6.0, device=device)
    centre[:, 0::2] -= grid[:, None]
    centre[:, 1::2] -= grid
    weight = torch.ones(7, 10, 1, 1, device=device)
    output = detops.deform_conv2d(x, centre, weight)
    assert (output[1, :2] == 10).all()
    assert output[0].isnan().all() and output[1, 2:].isnan().all() and output[2].isnan().all()
    (grad,) = torch.autograd.grad(output[1, :2].sum(), x)
    expected_grad = torch.zeros_like(grad)
    expected_grad[1, :20, 2:4, 2:4] = 9
    assert torch.equal(grad, expected_grad)


@settings(max_examples=100)
@given(
    st.lists(st.floats(width=32), min_size=8, max_size=8),
    st.sampled_from(LAYOUTS),
    st.sampled_from([torch.float32, torch.double, torch.float16]),
)
def test_any_offset_gives_bounded_output_and_finite_gradient(values, layout, dtype):
    x = torch.ones(1, 3, 2, 2, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    offset = torch.tensor(values).view(1, 2, 2, 2).requires_grad_()
    output = detops.deform_conv2d(x, offset, torch.ones(1, 3, 1, 1, dtype=dtype))
    assert ((output >= 0) & (output <= 3.01)).all()
    for grad in torch.autograd.grad(output.sum(), (x, offset)):
        assert grad.isfinite().all()
    expected = reference.deform_conv2d(
        x.detach().double(), offset.detach().double(), torch.ones(1, 3, 1, 1).double()
    )
    torch.testing.assert_close(output.double(), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.double])
@pytest.mark.parametrize("name", ["large groups", "offset groups across blocks"])
def test_deform_conv2d_accepts_unaligned_memory(device, name, dtype):
    tensors, window = arguments(name, layout=torch.channels_last, dtype=dtype, device=device)
    x = tensors[0].detach()
    flat = torch.empty(x.numel() + 1, dtype=dtype, device=device)[1:]
    shifted = flat.view(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2).copy_(x).requires_grad_()
    assert shifted.is_contiguous(memory_format=torch.channels_last)
    assert shifted.data_ptr() % 16 != 0
    for one, other in zip(
        gradients(detops.deform_conv2d, (shifted, *tensors[1:]), window),
        gradients(detops.deform_conv2d, tensors, window),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_many_samples_of_one_cell_match_reference(device):
    """All positions sample one location, or one just outside the image."""
    tensors, window = arguments("groups", dtype=torch.double, device=device)
    x, offset, mask, weight, bias = tensors
    positions = offset.detach().clone()
    n, _, height, width = positions.shape
    rows = torch.arange(height, device=device)[:, None]
    columns = torch.arange(width, device=device)
    for point in range(18):
        positions[:, 2 * point] = [2.3, -0.7, 5.6][point % 3] - rows + 1 - point % 9 // 3
        positions[:, 2 * point + 1] = [1.8, 6.4, -0.2][point % 3] - columns + 1 - point % 3
    tensors_with_offset = (x, positions.requires_grad_(), mask, weight, bias)
    check_all(
        gradients(detops.deform_conv2d, tensors_with_offset, window),
        gradients(reference.deform_conv2d, tensors_with_offset, window),
        eps=2.2e-16,
    )
