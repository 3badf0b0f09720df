import math

import pytest
import reference_max_samples as reference
import torch
from pool_inputs import map_and_rois
from torch.autograd import gradcheck

import detops
from detops.bench.roi_align_max import plain_roi_align_max

FORMATS = (torch.contiguous_format, torch.channels_last)
SIZE, SCALE = (2, 3), 0.5


def inputs(channels=5, count=6, dtype=torch.float32, device="cpu", layout=FORMATS[0]):
    """Returns a feature map and RoIs that reach beyond it."""
    x, boxes, _ = map_and_rois(channels, count, dtype, device, layout)
    return x, boxes


def pool(x, boxes, ratio=2, aligned=True):
    return detops.roi_align_max(x, boxes, SIZE, SCALE, ratio, aligned)


def with_gradient(call, x, boxes):
    output = call(x, boxes)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, x, grad)]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("channels", [1, 5, 17, 70])
def test_roi_align_max_matches_reference(isa, device, channels, ratio, aligned, layout):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        x, boxes = inputs(channels, dtype=dtype, device=device, layout=layout)
        found = pool(x, boxes, ratio, aligned)
        args = (x.detach().cpu(), boxes.cpu(), SIZE, SCALE, ratio, aligned)
        expected, places = reference.roi_align_max(*args)
        assert found.dtype == dtype and found.is_contiguous(memory_format=layout)
        torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=tolerance)
        if dtype == torch.float64:
            raw = torch.ops.detops.roi_align_max_forward(x, boxes, SCALE, *SIZE, ratio, aligned)
            torch.testing.assert_close(torch.stack(raw[1:], -1).cpu(), places)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("channels", [1, 5, 130])
def test_gradients_match_float64(isa, device, channels, layout):
    single = with_gradient(pool, *inputs(channels, device=device, layout=layout))
    x, boxes = (t.detach().double().cpu() for t in inputs(channels))
    double = with_gradient(pool, x.requires_grad_(), boxes)
    assert single[1].is_contiguous(memory_format=layout)
    for a, b in zip(single, double, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4)


def test_roi_align_max_passes_gradcheck(device):
    x, boxes = inputs(2, 3, torch.float64, device)
    for ratio in (0, 2):
        assert gradcheck(lambda x, r=ratio: pool(x, boxes, r), (x,))
    (grad,) = torch.autograd.grad(pool(x, boxes).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="roi_align_max_backward is not implemented"):
        grad.sum().backward()


def test_one_sample_per_bin_is_roi_align(device):
    x, boxes = inputs(device=device)
    torch.testing.assert_close(
        pool(x, boxes, 1), detops.roi_align(x, boxes, SIZE, SCALE, 1, aligned=True)
    )


def test_benchmark_baseline_matches_roi_align_max():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 20, 30, generator=generator)
    boxes = torch.rand(4, 4, generator=generator).cumsum(1) * 60 + 40
    boxes = torch.cat([torch.zeros(4, 1), boxes], 1)
    found = detops.roi_align_max(x, boxes, 7, 1 / 16, 2, aligned=True)
    torch.testing.assert_close(found, plain_roi_align_max(x, boxes))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
def test_half_precision_rounds_once(isa, device, dtype, layout):
    x, boxes = inputs(37, dtype=dtype, device=device, layout=layout)
    y = x.detach().float().requires_grad_()
    ours, single = with_gradient(pool, x, boxes), with_gradient(pool, y, boxes.float())
    assert torch.equal(ours[0], single[0].to(dtype))
    grad = torch.randn(ours[0].shape, generator=torch.Generator().manual_seed(1)).to(x)
    single = torch.autograd.grad(pool(y, boxes.float()), y, grad.float())[0]
    assert ours[1].dtype == dtype and torch.equal(ours[1], single.to(dtype))


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    args = inputs(200, 50)
    one, two = two_threads(lambda: with_gradient(pool, *args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("layout", FORMATS)
def test_first_of_equal_samples_gets_the_gradient(isa, device, layout):
    x = torch.zeros(1, 40, 6, 6, device=device).contiguous(memory_format=layout)
    box = torch.tensor([[0.0, 0, 0, 4, 4]], device=device)  # samples lie on pixels
    x[..., 3, 3] = x[..., 1, 1] = 5
    x.requires_grad_()
    found = detops.roi_align_max(x, box, 1, 1.0, 4, aligned=True)
    assert (found == 5).all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert (grad[..., 1, 1] == 1).all() and grad.sum() == 40


@pytest.mark.parametrize("layout", FORMATS)
def test_samples_beyond_the_map_are_zero_without_gradient(isa, device, layout):
    x = torch.full((1, 40, 4, 4), -1.0, device=device).contiguous(memory_format=layout)
    x[:, 20:] = 1
    x.requires_grad_()
    box = torch.tensor([[0.0, 2, 2, 10, 10]], device=device)
    found = detops.roi_align_max(x, box, 1, 1.0, 4)
    assert (found[:, :20] == 0).all() and (found[:, 20:] == 1).all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert not grad[:, :20].any() and grad.sum() == 20


@pytest.mark.parametrize("layout", FORMATS)
def test_maximum_skips_nan_and_zero_weight_pixels(isa, device, layout):
    nan, inf = math.nan, math.inf
    x = torch.zeros(1, 20, 4, 4, device=device).contiguous(memory_format=layout)
    box = torch.tensor([[0.0, 0, 0, 2, 2]], device=device)  # samples lie on pixels 0 and 1

    def pooled():
        return detops.roi_align_max(x, box, 1, 1.0, 2, aligned=True).flatten()

    x[..., 0, 0] = nan
    assert not pooled().any()
    x[..., :2, :2] = -inf
    assert (pooled() == -inf).all()
    x[..., :2, :2] = nan
    assert pooled().isnan().all()
    x[..., :2, :2], x[..., 2, :] = 1, inf  # next to the read pixels, with a weight of 0
    assert (pooled() == 1).all()


def test_nonfinite_and_inverted_boxes_pool_to_zero(device):
    x, _ = inputs(3, device=device)
    nan, inf = math.nan, math.inf
    places = [[0.0, nan, 2, 8, 9], [0, 1, 2, inf, 9], [0, 9, 9, 3, 3], [0, 2, 2, 3e9, 3e9]]
    boxes = torch.tensor(places, device=device)
    found = pool(x, boxes, 0)
    assert not found[:3].any() and found.isfinite().all()
    assert torch.autograd.grad(found.sum(), x)[0].isfinite().all()
    assert pool(x, boxes, 2)[:2].isfinite().all()


@pytest.mark.parametrize(("channels", "count"), [(0, 3), (3, 0)])
def test_empty_input_gives_empty_output_and_zero_gradient(device, poison, channels, count):
    found = with_gradient(pool, *inputs(channels, count, device=device))
    assert found[0].shape == (count, channels, *SIZE) and not found[1].any()


def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked):
    x, boxes = inputs(device=device)
    boxes[1, 0] = 2
    if values_are_checked:
        with pytest.raises(RuntimeError, match=r"detops.roi_align_max: boxes\[1, 0\] is a batch"):
            pool(x, boxes)
    elif device == "cuda":
        assert not pool(x, boxes)[1].any()


def test_backward_ignores_invalid_positions(device):
    x, boxes = inputs(device=device)
    size = (2, 5, 9, 11)
    grad = torch.ones(6, 5, *SIZE, device=device)
    for place in (math.nan, math.inf, -1e30, 1e9):
        places = torch.full_like(grad, place)
        args = (grad, boxes, places, places, SCALE, *SIZE, *size, 2, True)
        assert not torch.ops.detops.roi_align_max_backward(*args).any()


@pytest.mark.slow
def test_op_passes_opcheck_and_matches_list_module_and_vmap():
    x, boxes = (t.detach() for t in inputs())
    boxes = boxes[boxes[:, 0].argsort()]
    expected = pool(x, boxes)
    module = detops.RoIAlignMax(SIZE, SCALE, 2, aligned=True)
    assert torch.equal(module(x, [boxes[:3, 1:], boxes[3:, 1:]]), expected)
    assert repr(module) == (
        "RoIAlignMax(output_size=(2, 3), spatial_scale=0.5, sampling_ratio=2, aligned=True)"
    )
    args = (x, boxes, SCALE, *SIZE, 2, True)
    torch.library.opcheck(torch.ops.detops.roi_align_max.default, args)
    torch.library.opcheck(torch.ops.detops.roi_align_max_forward.default, args)
    _, y, x_places = torch.ops.detops.roi_align_max_forward(*args)
    args = (expected, boxes, y, x_places, SCALE, *SIZE, *x.shape, 2, True)
    torch.library.opcheck(torch.ops.detops.roi_align_max_backward.default, args)
    both = torch.vmap(pool, in_dims=(0, None))(torch.stack([x, 2 * x]), boxes)
    assert torch.equal(both, torch.stack([expected, 2 * expected]))


def test_roi_align_max_rejects_bad_input():
    x, boxes = inputs()
    with pytest.raises(RuntimeError, match=r"detops.roi_align_max: boxes must be \[K, 5\]"):
        pool(x, boxes[:, 1:])
    with pytest.raises(RuntimeError, match="sampling_ratio must be at most 64, got 65"):
        pool(x, boxes, 65)
