import math

import pytest
import reference_deform_roi_pool as reference
import torch
from pool_inputs import map_and_rois
from torch.autograd import gradcheck

import detops
from detops.bench.deform_roi_pool import plain_deform_roi_pool

FORMATS = (torch.contiguous_format, torch.channels_last)
SIZE, SCALE, GAMMA = (2, 3), 0.5, 0.4


def inputs(channels=5, count=6, dtype=torch.float32, device="cpu", layout=FORMATS[0]):
    """Returns a feature map, RoIs that reach beyond it and offsets that move bins beyond it."""
    x, boxes, generator = map_and_rois(channels, count, dtype, device, layout)
    offset = torch.randn(count, 2, *SIZE, generator=generator)
    return x, boxes, offset.to(device, dtype).requires_grad_()


def pool(x, boxes, offset, ratio=2):
    return detops.deform_roi_pool(x, boxes, offset, SIZE, SCALE, ratio, GAMMA)


def with_gradients(call, x, boxes, offset):
    output = call(x, boxes, offset)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, (x, offset), grad)]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("channels", [1, 5, 17, 70])
def test_deform_roi_pool_matches_reference(isa, device, channels, ratio, layout):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        args = inputs(channels, dtype=dtype, device=device, layout=layout)
        for offset in (args[2], None):
            found = pool(args[0], args[1], offset, ratio)
            wide = [t if t is None else t.detach().cpu() for t in (args[0], args[1], offset)]
            expected = reference.deform_roi_pool(*wide, SIZE, SCALE, ratio, GAMMA)
            assert found.dtype == dtype and found.is_contiguous(memory_format=layout)
            torch.testing.assert_close(
                found.double().cpu(), expected, rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("channels", [1, 5, 130])
def test_gradients_match_float64(isa, device, channels, layout):
    single = with_gradients(pool, *inputs(channels, device=device, layout=layout))
    args = [t.detach().double().cpu() for t in inputs(channels)]
    double = with_gradients(pool, args[0].requires_grad_(), args[1], args[2].requires_grad_())
    assert single[1].is_contiguous(memory_format=layout)
    for a, b in zip(single, double, strict=True):
        scale = float(b.abs().amax().clamp(min=1))
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4 * scale)


def test_deform_roi_pool_passes_gradcheck(device):
    x, boxes, offset = inputs(2, 3, torch.float64, device)
    for ratio in (0, 2):
        assert gradcheck(lambda x, o, r=ratio: pool(x, boxes, o, r), (x, offset))
    assert gradcheck(lambda x: pool(x, boxes, None), (x,))
    (slope,) = torch.autograd.grad(pool(x, boxes, offset).sum(), offset, create_graph=True)
    with pytest.raises(RuntimeError, match="deform_roi_pool_backward is not implemented"):
        slope.sum().backward()


def test_pooling_without_offsets_is_roi_align(device):
    x, boxes, offset = inputs(device=device)
    aligned = detops.roi_align(x, boxes, SIZE, SCALE, 2, aligned=True)
    torch.testing.assert_close(pool(x, boxes, None), aligned)
    torch.testing.assert_close(pool(x, boxes, torch.zeros_like(offset)), aligned)


def test_benchmark_baseline_matches_deform_roi_pool():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 20, 30, generator=generator)
    boxes = torch.rand(4, 4, generator=generator).cumsum(1) * 60 + 40
    boxes = torch.cat([torch.zeros(4, 1), boxes], 1)
    offset = torch.randn(4, 2, 7, 7, generator=generator) / 10
    found = detops.deform_roi_pool(x, boxes, offset, 7, 1 / 16, 2, 0.1)
    torch.testing.assert_close(found, plain_deform_roi_pool(x, boxes, offset))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
def test_half_precision_rounds_once(isa, device, dtype, layout):
    half = inputs(37, dtype=dtype, device=device, layout=layout)
    wide = [t.detach().float().requires_grad_(t.requires_grad) for t in half]
    ours, single = pool(*half), pool(*wide)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    ours = torch.autograd.grad(ours, (half[0], half[2]), grad)
    single = torch.autograd.grad(single, (wide[0], wide[2]), grad.float())
    for a, b in zip(ours, single, strict=True):
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))


def test_single_gradient_equals_joint_gradient(device):
    x, boxes, offset = inputs(device=device)
    both = torch.autograd.grad(pool(x, boxes, offset).square().sum(), (x, offset))
    (alone,) = torch.autograd.grad(pool(x, boxes, offset.detach()).square().sum(), x)
    assert torch.equal(alone, both[0])
    (alone,) = torch.autograd.grad(pool(x.detach(), boxes, offset).square().sum(), offset)
    assert torch.equal(alone, both[1])


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    args = inputs(200, 50)
    one, two = two_threads(lambda: with_gradients(pool, *args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_nonfinite_boxes_and_offsets_pool_to_zero(device):
    x, _, _ = inputs(3, device=device)
    nan, inf = math.nan, math.inf
    places = [[0.0, nan, 2, 8, 9], [0, 1, 2, inf, 9], [0, 9, 9, 3, 3], [0, 2, 2, 3e9, 3e9]]
    boxes = torch.tensor(places, device=device)
    offset = torch.zeros(4, 2, *SIZE, device=device, requires_grad=True)
    found = pool(x, boxes, offset, 0)
    assert found[:3].abs().sum() == 0 and found.isfinite().all()
    gradients = torch.autograd.grad(found.sum(), (x, offset))
    assert gradients[0].isfinite().all() and gradients[1][:1].abs().sum() == 0
    boxes = torch.tensor([[0.0, 2, 2, 12, 12]], device=device).expand(4, 5)
    moves = torch.tensor([nan, inf, 1e30, -1e30], device=device).view(4, 1, 1, 1)
    assert pool(x, boxes, moves.expand(4, 2, *SIZE)).abs().sum() == 0


@pytest.mark.parametrize(("channels", "count"), [(0, 3), (3, 0)])
def test_empty_input_gives_empty_output_and_zero_gradient(device, poison, channels, count):
    args = inputs(channels, count, device=device)
    found = with_gradients(pool, *args)
    assert found[0].shape == (count, channels, *SIZE)
    assert found[1].abs().sum() == 0 and found[2].abs().sum() == 0


def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked):
    x, boxes, offset = inputs(device=device)
    boxes[1, 0] = 2
    if values_are_checked:
        with pytest.raises(RuntimeError, match=r"detops.deform_roi_pool: boxes\[1, 0\] is a batch"):
            pool(x, boxes, offset)
    elif device == "cuda":
        assert pool(x, boxes, offset)[1].abs().sum() == 0


@pytest.mark.slow
def test_op_passes_opcheck_and_matches_list_module_and_vmap():
    x, boxes, offset = (t.detach() for t in inputs())
    boxes = boxes[boxes[:, 0].argsort()]
    expected = pool(x, boxes, offset)
    module = detops.DeformRoIPool(SIZE, SCALE, 2, GAMMA)
    assert torch.equal(module(x, [boxes[:3, 1:], boxes[3:, 1:]], offset), expected)
    assert repr(module) == (
        "DeformRoIPool(output_size=(2, 3), spatial_scale=0.5, sampling_ratio=2, gamma=0.4)"
    )
    args = (x, boxes, offset, SCALE, *SIZE, 2, GAMMA)
    torch.library.opcheck(torch.ops.detops.deform_roi_pool.default, args)
    torch.library.opcheck(torch.ops.detops.deform_roi_pool_forward.default, args)
    args = (expected, x, boxes, offset, SCALE, 2, GAMMA, False)
    torch.library.opcheck(torch.ops.detops.deform_roi_pool_backward.default, args)
    both = torch.vmap(pool, in_dims=(0, None, None))(torch.stack([x, 2 * x]), boxes, offset)
    assert torch.equal(both, torch.stack([expected, 2 * expected]))


def test_deform_roi_pool_rejects_bad_input():
    x, boxes, offset = inputs()
    with pytest.raises(
        RuntimeError, match=r"detops.deform_roi_pool: offset must be \[6, 2, 2, 3\]"
    ):
        pool(x, boxes, offset[..., :2])
    with pytest.raises(RuntimeError, match=r"detops.deform_roi_pool: boxes must be \[K, 5\]"):
        pool(x, boxes[:, 1:], offset)
    with pytest.raises(RuntimeError, match="sampling_ratio must be at most 64, got 65"):
        pool(x, boxes, offset, 65)
