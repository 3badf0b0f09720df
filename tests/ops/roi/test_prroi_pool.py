import math

import pytest
import reference_prroi_pool as reference
import torch
from pool_inputs import map_and_rois
from torch.autograd import gradcheck

import detops
from detops.bench.prroi_pool import plain_prroi_pool

FORMATS = (torch.contiguous_format, torch.channels_last)
SIZE, SCALE = (2, 3), 0.5


def inputs(channels=5, count=6, dtype=torch.float32, device="cpu", layout=FORMATS[0]):
    """Returns a feature map and RoIs that reach beyond it; one RoI begins and ends on pixels."""
    x, boxes, _ = map_and_rois(channels, count, dtype, device, layout)
    boxes[:1, 1:] = torch.tensor([4, 4, 16, 16])
    return x, boxes.requires_grad_()


def pool(x, boxes):
    return detops.prroi_pool(x, boxes, SIZE, SCALE)


def with_gradients(x, boxes):
    output = pool(x, boxes)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, (x, boxes), grad)]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (14, 14)])
@pytest.mark.parametrize("channels", [1, 5, 17, 70])
def test_prroi_pool_matches_reference(isa, device, channels, size, layout):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        x, boxes = inputs(channels, dtype=dtype, device=device, layout=layout)
        found = detops.prroi_pool(x, boxes, size, SCALE)
        expected = reference.prroi_pool(x.detach().cpu(), boxes.detach().cpu(), size, SCALE)
        assert found.dtype == dtype and found.is_contiguous(memory_format=layout)
        torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("channels", [1, 5, 130])
def test_gradients_match_float64(isa, device, channels, layout):
    single = with_gradients(*inputs(channels, device=device, layout=layout))
    x, boxes = (t.detach().double().cpu().requires_grad_() for t in inputs(channels))
    double = with_gradients(x, boxes)
    assert single[1].is_contiguous(memory_format=layout)
    for a, b in zip(single, double, strict=True):
        scale = float(b.abs().amax().clamp(min=1))
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4 * scale)


def test_prroi_pool_passes_gradcheck(device):
    x, boxes = inputs(2, 3, torch.float64, device)
    index, corners = boxes.detach()[:, :1], boxes.detach()[:, 1:].requires_grad_()
    assert gradcheck(lambda x, c: pool(x, torch.cat([index, c], 1)), (x, corners))
    (slope,) = torch.autograd.grad(pool(x, boxes).sum(), boxes, create_graph=True)
    with pytest.raises(RuntimeError, match="prroi_pool_backward is not implemented"):
        slope.sum().backward()


def test_short_bins_keep_precision(isa, device):
    x, _ = inputs(3, device=device)
    box = torch.tensor([[0.0, 8.3, 6.1, 8.3005, 6.1005]], device=device)
    found = detops.prroi_pool(x, box, 1, SCALE)
    box = box.double().cpu()
    expected = reference.prroi_pool(x.detach().cpu(), box, (1, 1), SCALE)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-3, atol=1e-3)


def test_benchmark_baseline_matches_prroi_pool():
    x, boxes = inputs()
    boxes = boxes.detach()
    boxes[:, 0] = 0
    found = detops.prroi_pool(x[:1], boxes, 7, 1 / 16)
    torch.testing.assert_close(found, plain_prroi_pool(x[:1], boxes), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
def test_half_precision_rounds_once(isa, device, dtype, layout):
    half = inputs(37, dtype=dtype, device=device, layout=layout)
    wide = [t.detach().float().requires_grad_() for t in half]
    ours, single = pool(*half), pool(*wide)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    ours = torch.autograd.grad(ours, half, grad)
    single = torch.autograd.grad(single, wide, grad.float())
    for a, b in zip(ours, single, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b.to(dtype), rtol=0.01, atol=1e-5)


def test_single_gradient_equals_joint_gradient(device):
    x, boxes = inputs(device=device)
    both = torch.autograd.grad(pool(x, boxes).square().sum(), (x, boxes))
    (alone,) = torch.autograd.grad(pool(x, boxes.detach()).square().sum(), x)
    assert torch.equal(alone, both[0])
    (alone,) = torch.autograd.grad(pool(x.detach(), boxes).square().sum(), boxes)
    assert torch.equal(alone, both[1]) and not alone[:, 0].any()


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    args = inputs(200, 50)
    one, two = two_threads(lambda: with_gradients(*args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_surface_falls_to_zero_next_to_the_map(device):
    x = torch.ones(1, 1, 4, 4, device=device)
    boxes = torch.tensor([[0.0, -1, 0, 0, 1], [0, 3, 1, 4, 2], [0, 4, 0, 5, 1]], device=device)
    assert detops.prroi_pool(x, boxes, 1).flatten().tolist() == [0.5, 0.5, 0]


def test_nonfinite_and_flat_boxes_pool_to_zero(device):
    x, _ = inputs(3, device=device)
    nan, inf = math.nan, math.inf
    places = [[nan, 2, 8, 9], [1, 2, inf, 9], [9, 9, 3, 12], [5, 5, 5, 9], [2, 2, 3e9, 3e9]]
    places += [[-3e38, 2, 3e38, 4]]
    boxes = torch.tensor([[0.0, *p] for p in places], device=device, requires_grad=True)
    found = pool(x, boxes)
    assert not found[:4].any() and found.isfinite().all()
    to_x, to_boxes = torch.autograd.grad(found.sum(), (x, boxes))
    assert to_x.isfinite().all() and not to_boxes[:4].any() and to_boxes.isfinite().all()


@pytest.mark.parametrize(("channels", "count"), [(0, 3), (3, 0)])
def test_empty_input_gives_empty_output_and_zero_gradient(device, poison, channels, count):
    found = with_gradients(*inputs(channels, count, device=device))
    assert found[0].shape == (count, channels, *SIZE)
    assert not found[1].any() and not found[2].any()


def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked):
    x, boxes = (t.detach() for t in inputs(device=device))
    boxes[1, 0] = 2
    if values_are_checked:
        with pytest.raises(RuntimeError, match=r"detops.prroi_pool: boxes\[1, 0\] is a batch"):
            pool(x, boxes)
    elif device == "cuda":
        assert not pool(x, boxes)[1].any()


@pytest.mark.slow
def test_op_passes_opcheck_and_matches_list_module_and_vmap():
    x, boxes = (t.detach() for t in inputs())
    boxes = boxes[boxes[:, 0].argsort()]
    expected = pool(x, boxes)
    module = detops.PrRoIPool(SIZE, SCALE)
    assert torch.equal(module(x, [boxes[:3, 1:], boxes[3:, 1:]]), expected)
    assert repr(module) == "PrRoIPool(output_size=(2, 3), spatial_scale=0.5)"
    args = (x, boxes, SCALE, *SIZE)
    torch.library.opcheck(torch.ops.detops.prroi_pool.default, args)
    torch.library.opcheck(torch.ops.detops.prroi_pool_forward.default, args)
    args = (expected, x, boxes, SCALE, False, True)
    torch.library.opcheck(torch.ops.detops.prroi_pool_backward.default, args)
    both = torch.vmap(pool, in_dims=(0, None))(torch.stack([x, 2 * x]), boxes)
    assert torch.equal(both, torch.stack([expected, 2 * expected]))


def test_prroi_pool_rejects_bad_input():
    x, boxes = inputs()
    with pytest.raises(RuntimeError, match=r"detops.prroi_pool: boxes must be \[K, 5\]"):
        pool(x, boxes[:, 1:])
    with pytest.raises(RuntimeError, match="output_size must be at least 1 x 1, got 0 x 0"):
        detops.prroi_pool(x, boxes, 0)
