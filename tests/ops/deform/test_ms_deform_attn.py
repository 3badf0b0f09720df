import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import detops
from detops.bench.ms_deform_attn import plain_ms_deform_attn
from detops.ops.ms_deform_attn import MSDeformAttnFunction

SHAPES = ((6, 9), (3, 5), (1, 1), (2, 4))


def inputs(
    channels=32,
    heads=3,
    points=4,
    queries=7,
    images=2,
    shapes=SHAPES,
    dtype=torch.float32,
    device="cpu",
    grad=True,
):
    """Returns value, shapes, starts, locations (some outside the feature maps) and weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = torch.tensor(shapes, dtype=torch.int64).view(-1, 2)
    sizes = shapes.prod(1)
    size = (images, queries, heads, len(shapes), points)
    value = torch.randn(images, int(sizes.sum()), heads, channels, generator=generator)
    locations = torch.rand(*size, 2, generator=generator) * 1.6 - 0.3
    weights = torch.rand(size, generator=generator)
    value, locations, weights = (
        t.to(device, dtype).requires_grad_(grad) for t in (value, locations, weights)
    )
    return value, shapes.to(device), (sizes.cumsum(0) - sizes).to(device), locations, weights


def with_gradients(call, args):
    output = call(*args)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(output.shape, generator=generator).to(output)
    leaves = (args[0], args[3], args[4])
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def expected(args):
    return with_gradients(
        lambda v, shapes, starts, p, w: reference.ms_deform_attn(v, shapes, p, w), args
    )


@pytest.mark.parametrize(
    ("channels", "points"),
    [(32, 4), (64, 4), (1, 1), (5, 3), (17, 2), (24, 9), (112, 1), (135, 1), (1032, 1)],
)
def test_ms_deform_attn_matches_reference(isa, device, channels, points):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        args = inputs(channels, points=points, dtype=dtype, device=device)
        for a, b in zip(with_gradients(detops.ms_deform_attn, args), expected(args), strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance * 10)


def test_pyramid_of_realistic_size_matches_reference(device):
    args = inputs(queries=50, heads=8, images=1, shapes=((50, 67), (25, 34)), device=device)
    ours = with_gradients(detops.ms_deform_attn, args)
    torch.testing.assert_close(ours[0].double(), expected(args)[0], rtol=1e-4, atol=1e-4)
    for a, b in zip(ours, expected(args), strict=True):
        # A coordinate of up to 67 is rounded to 4e-6; the slope of the slopes adds to it.
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=5e-3)


def test_benchmark_baseline_matches_ms_deform_attn():
    value, shapes, starts, locations, weights = inputs(grad=False)
    plain = plain_ms_deform_attn(value, SHAPES, locations, weights)
    torch.testing.assert_close(
        detops.ms_deform_attn(value, shapes, starts, locations, weights), plain
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [32, 13])
def test_half_precision_rounds_once(isa, device, dtype, channels):
    half = inputs(channels, dtype=dtype, device=device)
    wide = [t.detach().float().requires_grad_() if t.is_floating_point() else t for t in half]
    ours, single = (with_gradients(detops.ms_deform_attn, args) for args in (half, wide))
    assert torch.equal(ours[0], single[0].to(dtype))
    # The incoming gradient is in half precision here.
    grad = torch.randn(single[0].shape, generator=torch.Generator().manual_seed(1))
    single = torch.autograd.grad(
        detops.ms_deform_attn(*wide), (wide[0], *wide[3:]), grad.to(device, dtype).float()
    )
    for a, b in zip(ours[1:], single, strict=True):
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))


def test_output_has_the_dtype_of_value(device):
    """Under autocast the values are in half precision, but the locations are not."""
    value, shapes, starts, locations, weights = inputs(device=device)
    args = [value.detach().bfloat16().requires_grad_(), shapes, starts, locations, weights]
    wide = [args[0].detach().float().requires_grad_(), *args[1:]]
    output, grad_value, grad_locations, grad_weights = with_gradients(detops.ms_deform_attn, args)
    assert output.dtype == grad_value.dtype == torch.bfloat16
    assert grad_locations.dtype == grad_weights.dtype == torch.float32
    assert torch.equal(output, detops.ms_deform_attn(*wide).bfloat16())
    doubles = [value, shapes, starts, locations.double(), weights.double()]
    assert torch.equal(detops.ms_deform_attn(*doubles), detops.ms_deform_attn(value, *args[1:]))
    with torch.autocast(device, torch.bfloat16):
        assert detops.ms_deform_attn(*args).dtype == torch.bfloat16


def test_ms_deform_attn_passes_gradcheck(device):
    args = inputs(3, heads=2, points=2, queries=2, dtype=torch.double, device=device)
    assert gradcheck(
        lambda v, p, w: detops.ms_deform_attn(v, args[1], args[2], p, w),
        (args[0], args[3], args[4]),
    )


def test_second_derivative_raises():
    args = inputs(grad=True)
    (grad,) = torch.autograd.grad(detops.ms_deform_attn(*args).sum(), args[3], create_graph=True)
    with pytest.raises(RuntimeError, match="ms_deform_attn_backward is not implemented"):
        grad.sum().backward()


def test_locations_refer_to_pixel_centres():
    """The centre of a pixel gives the pixel; half a pixel beyond the edge gives 0."""
    value = torch.arange(1.0, 13.0).view(1, 12, 1, 1)
    shapes, starts = torch.tensor([[3, 4]]), torch.tensor([0])
    points = [
        (0.5 / 4, 0.5 / 3),
        (3.5 / 4, 2.5 / 3),
        (0.0, 0.5 / 3),
        (-0.5 / 4, 0.5),
        (0.5, 3.5 / 3),
    ]
    locations = torch.tensor(points).view(1, 5, 1, 1, 1, 2)
    found = detops.ms_deform_attn(value, shapes, starts, locations, torch.ones(1, 5, 1, 1, 1))
    torch.testing.assert_close(found.flatten(), torch.tensor([1.0, 12, 0.5, 0, 0]))


def test_level_start_index_sets_the_order_of_levels(device):
    value, shapes, starts, locations, weights = inputs(device=device, grad=False)
    sizes = shapes.prod(1).tolist()
    reversed_value = torch.cat(value.split(sizes, 1)[::-1], 1)
    other = (value.size(1) - shapes.prod(1).cumsum(0)).contiguous()
    args = (shapes, starts, locations, weights)
    assert torch.equal(
        detops.ms_deform_attn(reversed_value, shapes, other, locations, weights),
        detops.ms_deform_attn(value, *args),
    )


EXTREME_LOCATIONS = [math.nan, math.inf, -math.inf, 1e30, -1e30, 3e38, -1.0, 2.0, 1e9]


def test_nonfinite_and_distant_locations_sample_zero(isa, device):
    args = inputs(points=len(EXTREME_LOCATIONS), device=device)
    with torch.no_grad():
        args[3][0, 0, 0, :, :, 0] = torch.tensor(EXTREME_LOCATIONS, device=device)
        args[3][0, 1, 0, :, :, 1] = torch.tensor(EXTREME_LOCATIONS, device=device)
    ours = with_gradients(detops.ms_deform_attn, args)
    for a, b in zip(ours, expected(args), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=2e-4)
    assert not ours[0][0, 0, :32].any() and not ours[2][0, 0, 0].any()
    assert not ours[3][0, 1, 0].any()


def test_values_outside_a_level_do_not_affect_its_samples(isa, device):
    """Level 1 is NaN: it is next to level 0 in memory, but not in the image."""
    value, shapes, starts, locations, _ = inputs(device=device, grad=False)
    value[:, starts[1] :] = math.nan
    locations, weights = locations[:, :, :, :1], torch.ones(2, 7, 3, 1, 4, device=device)
    wider = torch.cat([locations * 2 - 0.5] * 3, 4)
    weights = torch.cat([weights] * 3, 4)
    shapes, starts = torch.tensor([[6, 9], [29 - 4, 1]]), torch.tensor([0, 54])
    shapes[1, 0] = value.size(1) - 54
    wide_locations = torch.cat([wider, torch.full_like(wider, -10)], 3)
    zero_weights = torch.cat([weights, torch.zeros_like(weights)], 3)
    assert (
        detops.ms_deform_attn(
            value, shapes.to(device), starts.to(device), wide_locations, zero_weights
        )
        .isfinite()
        .all()
    )


@settings(max_examples=100)
@given(st.lists(st.floats(width=32), min_size=8, max_size=8), st.sampled_from([1, 4, 7, 16, 33]))
def test_any_locations_give_finite_bounded_results(coordinates, channels):
    value, shapes, starts, _, weights = inputs(channels, 1, 1, 1, 1)
    locations = torch.tensor(coordinates).view(1, 1, 1, 4, 1, 2).requires_grad_()
    args = (value, shapes, starts, locations, weights)
    output, *grads = with_gradients(detops.ms_deform_attn, args)
    assert output.isfinite().all() and all(g.isfinite().all() for g in grads)
    assert output.abs().max() <= 4 * value.abs().max() * 1.001


def test_every_run_and_thread_count_give_the_same_bits(isa, two_threads):
    args = inputs(queries=300)
    for other in (args, inputs(queries=300, images=1, heads=1)):  # fewer heads than threads
        one, two = two_threads(lambda: with_gradients(detops.ms_deform_attn, other))  # noqa: B023
        repeated = with_gradients(detops.ms_deform_attn, other)
        for a, b, c in zip(one, two, repeated, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c)


def test_ms_deform_attn_accepts_any_layout(device):
    args = inputs(device=device)
    strided = [torch.stack([t, t], -1)[..., 0] for t in args]
    permuted = [args[0].transpose(1, 2).contiguous().transpose(1, 2), *strided[1:]]
    for other in (strided, permuted):
        assert not other[0].is_contiguous()
        assert torch.equal(detops.ms_deform_attn(*other), detops.ms_deform_attn(*args))
    grad = torch.ones((), device=device).expand(2, 7, 96)
    raw = detops._C.ms_deform_attn_backward
    for a, b in zip(raw(grad, *args), raw(grad.contiguous(), *strided), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.double])
def test_ms_deform_attn_accepts_unaligned_memory(device, dtype):
    args = inputs(dtype=dtype, device=device)
    shifted = list(args)
    for i in (0, 3, 4):
        flat = torch.empty(args[i].numel() + 1, dtype=dtype, device=device)
        shifted[i] = flat[1:].view_as(args[i]).copy_(args[i].detach()).requires_grad_()
        assert shifted[i].is_contiguous() and shifted[i].data_ptr() % 16 != 0
    for a, b in zip(
        with_gradients(detops.ms_deform_attn, args),
        with_gradients(detops.ms_deform_attn, shifted),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_many_samples_of_one_cell_match_reference(device):
    """All queries sample one location; some samples lie at the corners of the feature map."""
    args = inputs(channels=8, queries=400, images=1, heads=1, shapes=((5, 4), (3, 3)), points=2,
                  device=device)  # fmt: skip
    with torch.no_grad():
        args[3][:, :, :, 0] = 0.43
        args[3][:, ::2, :, 1, 0] = torch.tensor([-0.05, 1.05], device=device)
        args[3][:, 1::2, :, 1, 0] = torch.tensor([1.05, -0.05], device=device)
    ours = with_gradients(detops.ms_deform_attn, args)
    for a, b in zip(ours, expected(args), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-3)
    for a, b in zip(ours, with_gradients(detops.ms_deform_attn, args), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "empty",
    [dict(images=0), dict(queries=0), dict(heads=0), dict(channels=0), dict(points=0),
     dict(shapes=())],
)  # fmt: skip
def test_empty_dimension_gives_zero_output_and_gradient(device, empty):
    args = inputs(**empty, device=device)
    output, *grads = with_gradients(detops.ms_deform_attn, args)
    sizes = dict(images=2, queries=7, heads=3, channels=32) | empty
    assert output.shape == (sizes["images"], sizes["queries"], sizes["heads"] * sizes["channels"])
    assert not output.any()
    for grad, leaf in zip(grads, (args[0], args[3], args[4]), strict=True):
        assert grad.shape == leaf.shape and not grad.any()


BAD_LEVELS = {
    "too many": ([[6, 9], [3, 5], [2, 1], [2, 4]], "as many positions as value .78., got 79"),
    "too few": ([[6, 9], [3, 5], [1, 1], [2, 3]], "as many positions as value .78., got 76"),
    "no height": ([[0, 9], [3, 5], [1, 1], [2, 4]], "level 0 of 0 x 9 from position 0 on must"),
    "negative": ([[-6, -9], [3, 5], [1, 1], [2, 4]], "level 0 of -6 x -9"),
    "huge": ([[2**62, 4], [3, 5], [1, 1], [2, 4]], "level 0 of 4611686018427387904 x 4"),
}


@pytest.mark.parametrize("name", BAD_LEVELS)
def test_level_shapes_that_mismatch_value_raise(device, name):
    value, shapes, starts, locations, weights = inputs(device=device, grad=False)
    level_shapes, message = BAD_LEVELS[name]
    grad = torch.ones(2, 7, 96, device=device)
    # Levels on the CPU are checked, whatever the device of the other tensors.
    args = (value, torch.tensor(level_shapes), starts.cpu(), locations, weights)
    with pytest.raises(RuntimeError, match=r"detops.ms_deform_attn: .*" + message):
        detops.ms_deform_attn(*args)
    with pytest.raises(RuntimeError, match=r"detops.ms_deform_attn_backward: .*" + message):
        detops._C.ms_deform_attn_backward(grad, *args)
    if device == "cuda":
        args = (value, torch.tensor(level_shapes, device=device), starts, locations, weights)
        assert detops.ms_deform_attn(*args).isfinite().all()
        assert all(g.isfinite().all() for g in detops._C.ms_deform_attn_backward(grad, *args))


@pytest.mark.parametrize("start", [-1, 71, 2**62, -(2**62)])
def test_start_index_out_of_range_raises_or_skips_the_level(device, start):
    value, shapes, starts, locations, weights = inputs(device=device, grad=False)
    starts[3] = start
    args = (value, shapes, starts, locations, weights)
    if device == "cpu":
        with pytest.raises(RuntimeError, match=f"level 3 of 2 x 4 from position {start} on must"):
            detops.ms_deform_attn(*args)
    else:
        without_level = [
            value,
            shapes[:3],
            starts[:3],
            locations[:, :, :, :3],
            weights[:, :, :, :3],
        ]
        assert torch.equal(detops.ms_deform_attn(*args), detops.ms_deform_attn(*without_level))


def test_overlapping_levels_keep_all_gradients(device):
    """Levels are unchecked on a GPU and may overlap there."""
    if device == "cpu":
        pytest.skip("levels on the CPU are checked")
    value, _, _, locations, weights = inputs(shapes=((6, 9),), points=4, device=device)
    split_in_two = [t.detach().view(2, 7, 3, 2, 2, *t.shape[5:]).requires_grad_() for t in
             (locations, weights)]  # fmt: skip
    shapes = torch.tensor([[6, 9], [6, 9]], device=device)
    one = with_gradients(
        detops.ms_deform_attn, (value, shapes[:1], shapes[:1, 0] * 0, locations, weights)
    )
    two = with_gradients(detops.ms_deform_attn, (value, shapes, shapes[:, 0] * 0, *split_in_two))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b.view_as(a), rtol=1e-5, atol=1e-5)


def test_ms_deform_attn_rejects_bad_input(device):
    names = ["value", "spatial_shapes", "level_start_index", "sampling_locations"]
    names += ["attention_weights"]
    valid = dict(zip(names, inputs(device=device, grad=False), strict=True))
    v, shapes, starts, p, w = valid.values()
    for name, value, message in [
        ("value", v[0], r"value must be \[N, S, M, D\], got \[78, 3, 32\]"),
        ("value", v.long(), "value must be float32, float64, float16 or bfloat16, got int64"),
        ("spatial_shapes", shapes[0], r"spatial_shapes must be \[L, 2\], got \[2\]"),
        ("spatial_shapes", shapes[:, :1], r"spatial_shapes must be \[L, 2\], got \[4, 1\]"),
        ("spatial_shapes", shapes.int(), "spatial_shapes must be int64, got int32"),
        ("spatial_shapes", shapes.to("meta"), "spatial_shapes must be on the device of value"),
        ("level_start_index", starts[:3], r"level_start_index must be \[4\], got \[3\]"),
        ("level_start_index", starts.float(), "level_start_index must be int64, got float32"),
        ("sampling_locations", p[0],
         r"sampling_locations must be \[2, Q, 3, 4, P, 2\], got \[7, 3, 4, 4, 2\]"),
        ("sampling_locations", p[:, :, :2],
         r"sampling_locations must be \[2, Q, 3, 4, P, 2\], got \[2, 7, 2, 4, 4, 2\]"),
        ("sampling_locations", p.to("meta"), "sampling_locations must be on the device of value"),
        ("attention_weights", w[:, :, :, :, :3],
         r"attention_weights must be \[2, 7, 3, 4, 4\], got \[2, 7, 3, 4, 3\]"),
        ("attention_weights", w.long(), "attention_weights must be float32"),
    ]:  # fmt: skip
        for guard in (torch.enable_grad, torch.inference_mode):
            with guard(), pytest.raises(RuntimeError, match=f"detops.ms_deform_attn: {message}"):
                detops.ms_deform_attn(**{**valid, name: value})
    with pytest.raises(RuntimeError, match=r"backward: grad must be \[2, 7, 96\], got \[2, 7, 5\]"):
        detops._C.ms_deform_attn_backward(torch.ones(2, 7, 5, device=device), *valid.values())


@pytest.mark.slow
def test_ms_deform_attn_passes_opcheck_and_compiles():
    args = inputs(grad=False)
    ops = torch.ops.detops
    torch.library.opcheck(ops.ms_deform_attn_forward.default, args)
    grad = torch.randn(2, 7, 96)
    torch.library.opcheck(ops.ms_deform_attn_backward.default, (grad, *args))
    compiled = torch.compile(
        detops.ms_deform_attn, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for queries in (5, 9):
        args = inputs(queries=queries)
        ours, plain = with_gradients(compiled, args), with_gradients(detops.ms_deform_attn, args)
        for a, b in zip(ours, plain, strict=True):
            assert torch.equal(a, b)


def test_vmap_and_func_grad_match_loop():
    value, shapes, starts, locations, weights = inputs(grad=False)
    stacked = [torch.stack([t, t + 0.1, t * 0.5]) for t in (value, locations, weights)]

    def call(v, p, w):
        return detops.ms_deform_attn(v, shapes, starts, p, w)

    for dims in ((0, 0, 0), (0, None, 0), (None, 0, None)):
        args = [s if d == 0 else s[0] for s, d in zip(stacked, dims, strict=True)]
        arguments_per_entry = [
            [a[i] if d == 0 else a for a, d in zip(args, dims, strict=True)] for i in range(3)
        ]
        assert torch.equal(
            torch.vmap(call, in_dims=dims)(*args),
            torch.stack([call(*e) for e in arguments_per_entry]),
        )
    gradient = torch.func.grad(lambda v, p, w: call(v, p, w).square().sum(), (0, 1, 2))
    batched = torch.vmap(gradient)(*stacked)
    for i in range(3):
        for a, b in zip(batched, gradient(*(s[i] for s in stacked)), strict=True):
            torch.testing.assert_close(a[i], b)
    with pytest.raises(ValueError, match="vmap over the shapes of levels is not supported"):
        torch.vmap(MSDeformAttnFunction.apply, in_dims=(0, 0, None, 0, 0))(
            stacked[0], torch.stack([shapes] * 3), starts, *stacked[1:]
        )
