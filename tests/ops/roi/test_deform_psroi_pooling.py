import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_sparse_pool import DeformPSRoIPooling as Reference
from torch.autograd import gradcheck

import detops
from detops import _C

LAYOUTS = [torch.contiguous_format, torch.channels_last]

# Channels, group_size, part_size, classes, output_size, sample_per_part.
KINDS = {
    "one group": (4, 1, 3, 1, (3, 3), 4),
    "classes": (6, 1, 2, 3, (4, 4), 2),
    "groups": (4, 3, 3, 2, (3, 3), 3),
    "groups of several bins": (2, 2, 5, 1, (5, 4), 2),
    "more groups than bins": (2, 3, 1, 1, (2, 2), 2),
    "no offsets": (5, 2, 3, 0, (3, 3), 4),
    "many channels": (70, 1, 2, 2, (2, 2), 2),
    "one pixel": (1, 1, 1, 1, (1, 1), 1),
}


def arguments(kind, shape=(2, 11, 13), count=7, scale=0.5, dtype=torch.float32, layout=None):
    """Returns input, boxes, offset and the remaining arguments of deform_psroi_pooling."""
    channels, group, part, classes, size, samples = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    images, height, width = shape
    x = torch.randn(images, channels * group**2, height, width, generator=generator, dtype=dtype)
    extent = torch.tensor([width, height], dtype=dtype) / scale
    corner = (torch.rand(count, 2, generator=generator, dtype=dtype) * 1.2 - 0.3) * extent
    side = torch.rand(count, 2, generator=generator, dtype=dtype) * 0.7 * extent
    index = torch.randint(images, (count, 1), generator=generator)
    rois = torch.cat([index, corner, corner + side], 1)
    offset = torch.randn(count, 2 * classes, part, part, generator=generator, dtype=dtype)
    x = x.contiguous(memory_format=layout or torch.contiguous_format).requires_grad_()
    rest = (size, scale, channels, group, part, samples, 0.1)
    return x, rois, offset.requires_grad_() if classes else None, rest


def moved(device, *tensors):
    return [None if t is None else t.detach().to(device).requires_grad_(t.requires_grad)
            for t in tensors]  # fmt: skip


def gradients(pooled, inputs):
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(pooled.shape, generator=generator, dtype=torch.float64).to(pooled)
    wanted = [t for t in inputs if t is not None]
    found = torch.autograd.grad(pooled, wanted, grad)
    return grad, *found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_matches_float64_reference(isa, device, layout, kind, dtype, poison):
    x, rois, offset, rest = arguments(kind, dtype=dtype, layout=layout)
    expected = Reference(x, rois, offset, *rest)
    x, rois, offset = moved(device, x, rois, offset)
    pooled = detops.deform_psroi_pooling(x, rois, offset, *rest)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    close = dict(atol=tolerance, rtol=tolerance)
    output, count = expected.forward()
    torch.testing.assert_close(pooled.detach().cpu().double(), output, **close)
    if min(pooled.shape[1:]) > 1:
        assert pooled.is_contiguous(memory_format=layout)
    _, counted = _C.deform_psroi_pool_forward(
        x, rois, offset, rest[1], rest[2], rest[3], *rest[0], *rest[4:]
    )
    per_class = rest[2] // counted.size(1)
    assert torch.equal(counted.cpu().double(), count[:, ::per_class])
    assert 0 < (count == 0).sum() + (count < rest[5] ** 2).sum() and (count > 0).any()

    grad, of_x, *of_offset = gradients(pooled, (x, offset))
    assert of_x.is_contiguous(memory_format=layout)
    expected_x, expected_offset = expected.backward(grad.cpu())
    torch.testing.assert_close(of_x.cpu().double(), expected_x, **close)
    if offset is not None:
        torch.testing.assert_close(
            of_offset[0].cpu().double(), expected_offset, atol=10 * tolerance, rtol=tolerance
        )


@pytest.mark.parametrize("kind", ["one group", "classes", "groups", "no offsets"])
def test_pooling_passes_gradcheck(device, kind):
    x, rois, offset, rest = arguments(kind, (1, 5, 6), 3, 0.7, torch.double)
    x, rois, offset = moved(device, x, rois, offset)

    def call(x, offset):
        return detops.deform_psroi_pooling(x, rois, offset, *rest)

    # Short steps keep samples off the edges of pixels, where the derivative does not exist.
    assert gradcheck(call, (x, offset), eps=1e-7, atol=1e-5)


def test_missing_and_zero_offsets_agree(device):
    x, rois, offset, rest = arguments("one group")
    x, rois, offset = moved(device, x, rois, offset)
    none = detops.deform_psroi_pooling(x, rois, None, *rest)
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, 0 * offset, *rest))
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, offset, *rest, no_trans=True))
    assert not torch.equal(none, detops.deform_psroi_pooling(x, rois, offset, *rest))
    empty = x.new_empty(0)
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, empty, *rest, no_trans=True))


def test_module_matches_op_with_defaults(device):
    x, rois, offset, (size, scale, channels, *_) = arguments("one group")
    x, rois, offset = moved(device, x, rois, offset)
    module = detops.DeformPSRoIPooling(3, scale, channels, trans_std=0.2)
    expected = detops.deform_psroi_pooling(x, rois, offset, size, scale, channels, 1, 3, 4, 0.2)
    assert torch.equal(module(x, rois, offset), expected)
    assert "trans_std=0.2" in repr(module)
    boxes = [rois[rois[:, 0] == i][:, 1:] for i in range(2)]
    plain = detops.DeformPSRoIPooling(3, scale, channels, no_trans=True)
    order = rois[:, 0].argsort(stable=True)
    assert torch.equal(plain(x, boxes), plain(x, rois[order]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["classes", "groups", "many channels"])
def test_half_precision_is_float32_rounded_once(isa, device, dtype, kind, layout, poison):
    x, rois, offset, rest = arguments(kind, layout=layout)
    x, rois, offset = moved(device, x.to(dtype), rois, offset)
    wide = x.detach().float().requires_grad_()
    ours = detops.deform_psroi_pooling(x, rois, offset, *rest)
    expected = detops.deform_psroi_pooling(wide, rois, offset, *rest)
    assert ours.dtype == dtype
    once = {"atol": 2e-6, "rtol": torch.finfo(dtype).eps / 2}
    torch.testing.assert_close(ours.float(), expected, **once)
    grad, of_x, of_offset = gradients(ours, (x, offset))
    wide_x, wide_offset = torch.autograd.grad(expected, (wide, offset), grad.float())
    torch.testing.assert_close(of_x.float(), wide_x, **once)
    torch.testing.assert_close(of_offset, wide_offset, atol=1e-5, rtol=1e-5)
    assert detops.deform_psroi_pooling(x, rois, offset.to(dtype), *rest).dtype == dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["one group", "classes", "groups", "many channels"])
def test_every_run_and_thread_count_give_the_same_bits(isa, two_threads, kind, layout):
    x, rois, offset, rest = arguments(kind, count=150, layout=layout)

    def both():
        pooled = detops.deform_psroi_pooling(x, rois, offset, *rest)
        return pooled, *gradients(pooled, (x, offset))

    first, second = two_threads(both)
    for a, b in zip(first + first, second + both(), strict=True):
        assert torch.equal(a, b)


def test_vmap_and_func_grad_match_loop():
    x, rois, offset, rest = (*moved("cpu", *arguments("classes")[:3]), arguments("classes")[3])
    x, offset = (torch.stack([t.detach(), t.detach() + 1, 2 * t.detach()]) for t in (x, offset))
    rois = torch.stack([rois] * 3)

    def pool(x, rois, offset):
        return detops.deform_psroi_pooling(x, rois, offset, *rest)

    expected = torch.stack([pool(*each) for each in zip(x, rois, offset, strict=True)])
    assert torch.equal(torch.vmap(pool)(x, rois, offset), expected)
    expected = torch.stack([pool(x[0], rois[0], each) for each in offset])
    assert torch.equal(torch.vmap(pool, (None, None, 0))(x[0], rois[0], offset), expected)
    gradient = torch.func.grad(lambda *args: pool(*args).square().sum(), argnums=(0, 2))
    ours = gradient(x[0], rois[0], offset[0])
    leaves = x[0].clone().requires_grad_(), offset[0].clone().requires_grad_()
    loss = pool(leaves[0], rois[0], leaves[1]).square().sum()
    for a, b in zip(ours, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_second_derivatives_raise():
    x, rois, offset, rest = arguments("one group")
    pooled = detops.deform_psroi_pooling(x, rois, offset, *rest)
    (grad,) = torch.autograd.grad(pooled.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for detops::deform_psroi_pool_backward"):
        grad.sum().backward()


@pytest.mark.parametrize("index", [2, -1, 1e6, math.nan])
def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked, index):
    x, rois, offset, rest = arguments("groups")
    x, rois, offset = moved(device, x, rois, offset)
    whole = detops.deform_psroi_pooling(x, rois, offset, *rest)
    rois[1, 0] = index
    if values_are_checked:
        with pytest.raises(
            RuntimeError, match=r"detops.deform_psroi_pooling: boxes\[1, 0\] is a batch index"
        ):
            detops.deform_psroi_pooling(x, rois, offset, *rest)
    else:
        ours = detops.deform_psroi_pooling(x, rois, offset, *rest)
        assert (ours[1] == 0).all() and torch.equal(ours[2:], whole[2:])
        _, of_x, of_offset = gradients(ours, (x, offset))
        assert of_x.isfinite().all() and (of_offset[1] == 0).all()


@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=3),
    st.floats(width=32),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_any_boxes_pool_to_finite_values(boxes, shift, group, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(1, 2 * group**2, 5, 6, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=layout).requires_grad_()
    rois = torch.tensor([[0.0, *b] for b in boxes])
    offset = torch.full((len(boxes), 2, 3, 3), shift).requires_grad_()
    pooled = detops.deform_psroi_pooling(x, rois, offset, 3, 1.0, 2, group, trans_std=0.1)
    assert pooled.isfinite().all() and pooled.abs().max() <= x.abs().max() * (1 + 1e-5)
    (of_x,) = torch.autograd.grad(pooled.sum(), x)
    assert of_x.isfinite().all()


def test_pixels_outside_the_bins_do_not_leak_in(isa, device):
    x = torch.full((1, 20, 14, 40), math.nan, device=device)
    x[:, :, 3:9, 10:20] = 1.0
    rois = torch.tensor([[0.0, 12, 4, 16, 6]], device=device)
    pooled = detops.deform_psroi_pooling(x, rois, None, 3, 1.0, 20)
    torch.testing.assert_close(pooled, torch.ones_like(pooled))


@pytest.mark.parametrize(("images", "count"), [(2, 0), (0, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_input_gives_empty_output_and_zero_gradient(device, images, count, layout):
    x = torch.zeros(images, 8, 4, 4, device=device).contiguous(memory_format=layout)
    offset = torch.zeros(count, 2, 3, 3, device=device, requires_grad=True)
    rois = torch.zeros(count, 5, device=device)
    pooled = detops.deform_psroi_pooling(x.requires_grad_(), rois, offset, 3, 1.0, 2, 2)
    assert pooled.shape == (0, 2, 3, 3)
    pooled.sum().backward()
    assert (x.grad == 0).all() and x.grad.shape == x.shape and offset.grad.shape == offset.shape


def test_pooling_accepts_strided_tensors(device):
    x, rois, offset, rest = arguments("groups")
    wide = x.detach().repeat_interleave(2, 3).to(device)[..., ::2]
    expected = detops.deform_psroi_pooling(wide.contiguous(), *moved(device, rois, offset), *rest)
    strided = offset.detach().to(device).transpose(0, 3).contiguous().transpose(0, 3)
    assert torch.equal(detops.deform_psroi_pooling(wide, rois.to(device), strided, *rest), expected)


X, R, O = torch.zeros(1, 8, 4, 4), torch.zeros(3, 5), torch.zeros(3, 4, 2, 2)  # noqa: E741


def call(x=X, rois=R, offset=O, size=2, scale=1.0, channels=2, group=2, **more):
    return detops.deform_psroi_pooling(x, rois, offset, size, scale, channels, group, **more)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=X[0]), r"input must be \[N, planes, H, W\], got \[8, 4, 4\]"),
        (dict(x=X.long()), "input must be float32"),
        (dict(rois=R[:, :4]), r"boxes must be \[K, 5\], got \[3, 4\]"),
        (dict(rois=R.to("meta")), "boxes must be on the device of input"),
        (dict(size=0), "output_size must be at least 1 x 1, got 0 x 0"),
        (dict(scale=0.0), "spatial_scale must be positive and finite, got 0"),
        (dict(channels=3), r"input must have output_channels \* group_size\^2 = 12 channels.*8"),
        (dict(channels=0, group=1), "output_channels must be at least 1, got 0"),
        (dict(group=0), r"group_size must be in \[1, 32767\], got 0"),
        (dict(part_size=0), r"part_size must be in \[1, 32767\], got 0"),
        (dict(sample_per_part=65), r"sample_per_part must be in \[1, 64\], got 65"),
        (dict(sample_per_part=0), r"sample_per_part must be in \[1, 64\], got 0"),
        (dict(trans_std=math.nan), "trans_std must be finite, got nan"),
        (dict(offset=O[0]), r"offset must be \[3, shifts, 2, 2\], got \[4, 2, 2\]"),
        (dict(offset=O[:2]), r"offset must be \[3, shifts, 2, 2\], got \[2, 4, 2, 2\]"),
        (dict(offset=O[:, :3]), r"offset must be \[K, 2 \* classes, .*\], got \[3, 3, 2, 2\]"),
        (dict(offset=O[:, :0]), r"offset must be \[3, shifts >= 2, 2, 2\], got \[3, 0, 2, 2\]"),
        (dict(part_size=3), r"offset must be \[3, shifts, 3, 3\], got \[3, 4, 2, 2\]"),
        (dict(offset=O.long()), "offset must be float32"),
        (dict(offset=O.to("meta")), "offset must be on the device of input"),
        (dict(offset=O.repeat(1, 2, 1, 1)[:, :6]), "multiple of offset's classes.*3.*got 2"),
    ],
)
def test_pooling_rejects_bad_input(arguments, message):
    with pytest.raises(RuntimeError, match="detops.deform_psroi_pooling: .*" + message):
        call(**arguments)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call(**arguments)


@pytest.mark.parametrize(
    ("grad", "count", "message"),
    [
        (
            torch.zeros(3, 2, 2),
            torch.zeros(3, 2, 2, 2),
            r"grad must be \[3, output_channels, high, wide\]",
        ),
        (
            torch.zeros(2, 2, 2, 2),
            torch.zeros(3, 2, 2, 2),
            r"grad must be \[3, output_channels, high, wide\], got",
        ),
        (torch.zeros(3, 2, 2, 2).half(), torch.zeros(3, 2, 2, 2), "grad must have the dtype of"),
        (torch.zeros(3, 2, 2, 2), torch.zeros(3, 1, 2, 2), r"count must be \[3, 2, 2, 2\], got"),
        (torch.zeros(3, 2, 2, 2), torch.zeros(3), r"count must be \[3, 2, 2, 2\], got"),
    ],
)
def test_backward_rejects_bad_gradients(grad, count, message):
    with pytest.raises(RuntimeError, match="detops.deform_psroi_pooling_backward: " + message):
        _C.deform_psroi_pool_backward(grad, X, R, O, count, 1.0, 2, 2, 4, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one group", "groups", "no offsets"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pooling_passes_opcheck(device, kind, layout):
    x, rois, offset, rest = arguments(kind, layout=layout)
    x, rois, offset = (None if t is None else t.detach().to(device) for t in (x, rois, offset))
    size, scale, channels, group, part, samples, std = rest
    ops = torch.ops.detops
    args = (x, rois, offset, scale, channels, group, *size, part, samples, std)
    torch.library.opcheck(ops.deform_psroi_pool_forward.default, args)
    pooled, count = _C.deform_psroi_pool_forward(*args)
    args = (pooled, x, rois, offset, count, scale, group, part, samples, std)
    torch.library.opcheck(ops.deform_psroi_pool_backward.default, args)


@pytest.mark.slow
def test_compiled_pooling_matches_eager():
    def call(x, rois, offset):
        return detops.deform_psroi_pooling(x, rois, offset, 3, 0.5, 4, trans_std=0.1).square().sum()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for layout in LAYOUTS:
        for count in (4, 6):
            x, rois, offset, _ = arguments("one group", (2, count, 7), count, layout=layout)
            ours, expected = compiled(x, rois, offset), call(x, rois, offset)
            torch.testing.assert_close(ours, expected)
            for a, b in zip(
                torch.autograd.grad(ours, (x, offset)),
                torch.autograd.grad(expected, (x, offset)),
                strict=True,
            ):
                torch.testing.assert_close(a, b)
