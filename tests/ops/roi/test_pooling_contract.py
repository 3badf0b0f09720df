"""Values and gradients of every pooling op; pooling.py explains the files `cases_<op>.py`."""

from functools import cache

import pytest
import torch
from contracts import load_cases
from pool_inputs import LAYOUTS
from pooling import Pooling, first_case_per_op
from torch.autograd import gradcheck, gradgradcheck

import detops

CASES = load_cases(Pooling)
HALF_DTYPES = [torch.float16, torch.bfloat16]
DTYPES = [torch.float32, torch.float64, *HALF_DTYPES]
# Images, channels, RoIs, size of the feature map, size of the output.
SHAPES = [
    (2, 5, 8, (9, 11), (2, 3)),
    (1, 1, 6, (7, 5), (1, 1)),
    (1, 17, 4, (30, 28), (1, 5)),
    (3, 2, 6, (1, 20), (3, 2)),
    (1, 1, 4, (1, 1), (2, 2)),
    (2, 70, 4, (6, 5), (1, 2)),
    (1, 1, 3, (12, 15), (14, 14)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_op = pytest.mark.parametrize("case", first_case_per_op(CASES), ids=lambda case: case.name)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "channels_last"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def close(found, expected, atol, rtol=0.0):
    torch.testing.assert_close(found.cpu().double(), expected.cpu().double(), atol=atol, rtol=rtol)


def has_layout(layout, result, of):
    """Returns whether a result has the layout of a feature map; any layout fits a size of 1."""
    sizes = *result.shape[1:], *of.shape[1:]
    return min(sizes) == 1 or result.is_contiguous(memory_format=layout)


@cache
def oracle_values(case, images, channels, count, size, output_size):
    """Returns tensors that every dtype holds exactly, and the result of the oracle."""
    sized = case.with_options(output_size=output_size)
    tensors = sized.tensors(images, channels, count, size, torch.bfloat16)
    tensors = case.cast(tensors, torch.float64)
    return sized, tensors, sized.oracle(*(t.detach() for t in tensors.values()), **sized.options)


@every_case
@every_layout
@every_dtype
def test_pooling_matches_the_oracle(isa, device, case, layout, dtype, poison):
    """A result in half precision is that of float32, rounded once."""
    atol = 1e-12 if dtype == torch.float64 else case.tolerance
    rtol = torch.finfo(dtype).eps / 2 if dtype in HALF_DTYPES else 0.0
    for shape in SHAPES:
        sized, tensors, expected = oracle_values(case, *shape)
        inputs = case.cast(tensors, dtype, device, layout)
        found = sized(inputs).detach()
        assert found.dtype == dtype and has_layout(layout, found, inputs["input"])
        close(found, expected, atol, rtol)


@every_case
@every_layout
@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(1, torch.float32), (5, torch.float32), (130, torch.float32), (5, torch.float64)],
)
def test_gradients_match_float64(isa, device, case, layout, channels, dtype, poison):
    """Compares with float64 in the plain layout, which the slopes below and gradcheck verify."""
    tensors = case.tensors(channels=channels, size=(7, 8))
    expected = case.with_gradients(case.cast(tensors, torch.float64))
    found = case.with_gradients(case.cast(tensors, dtype, device, layout))
    assert has_layout(layout, found[1], found[0])
    for name, a, b in zip(case.gradients, found[1:], expected[1:], strict=True):
        assert a.dtype == torch.promote_types(dtype, tensors[name].dtype)
        # Gradients of boxes and offsets are sums over all channels.
        scale = 1 if name.startswith("input") else max(1, b.abs().max().item())
        close(a, b, (1e-11 if dtype == torch.float64 else case.gradient_tolerance) * scale)


@cache
def directional_derivatives(case):
    """Returns tensors, the gradient of the result, and per leaf a direction and a slope."""
    tensors = case.tensors(count=12, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    plain = {name: t.detach() for name, t in tensors.items()}
    grad = torch.randn(case(tensors).shape, generator=generator, dtype=torch.float64)
    found = {}
    for name in case.gradients:
        direction = torch.randn(plain[name].shape, generator=generator, dtype=torch.float64)
        if name == "boxes":
            direction[:, 0] = 0  # an index
        ends = [plain | {name: plain[name] + step * direction} for step in (1e-6, -1e-6)]
        above, below = (case.oracle(*end.values(), **case.options) for end in ends)
        found[name] = direction, ((above - below) / 2e-6 * grad).sum()
    return tensors, grad, found


@every_case
@every_layout
def test_gradients_match_finite_differences_of_the_oracle(isa, device, case, layout):
    tensors, grad, expected = directional_derivatives(case)
    tensors = case.cast(tensors, torch.float64, device, layout)
    _, *found = case.with_gradients(tensors, grad)
    for name, gradient in zip(case.gradients, found, strict=True):
        direction, slope = expected[name]
        close((gradient.cpu() * direction).sum(), slope, atol=1e-6, rtol=1e-6)


@every_case
@every_layout
def test_pooling_passes_gradcheck(device, case, layout):
    case = case.with_options(output_size=(2, 1))
    tensors = case.tensors(2, 1, 4, (4, 5), torch.float64, device, layout)
    index, corners = tensors["boxes"].detach().split([1, case.columns - 1], 1)

    def pool(*leaves):
        inputs = tensors | dict(zip(case.gradients, leaves, strict=True))
        if "boxes" in case.gradients:
            inputs["boxes"] = torch.cat([index, inputs["boxes"]], 1)  # an index has no gradient
        return case(inputs)

    leaves = [
        corners.clone().requires_grad_() if name == "boxes" else tensors[name]
        for name in case.gradients
    ]
    # Short steps stay between the pixels, at whose centres samples have no derivative.
    assert gradcheck(pool, leaves, eps=1e-7, atol=1e-5)
    if case.second_derivatives:
        assert gradgradcheck(pool, leaves)
        return
    first = torch.autograd.grad(pool(*leaves).square().sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="derivative for detops::.*_backward is not implemented"):
        first.sum().backward()


SEVERAL = [case for case in CASES if len(case.gradients) > 1]


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)
@every_layout
def test_each_gradient_alone_equals_the_joint_gradient(device, case, layout):
    tensors = case.tensors(device=device, layout=layout)
    _, *joint = case.with_gradients(tensors)
    for name, expected in zip(case.gradients, joint, strict=True):
        single = {n: t.detach().requires_grad_(n == name) for n, t in tensors.items()}
        grad = torch.randn(case(tensors).shape, generator=torch.Generator().manual_seed(1))
        found = torch.autograd.grad(case(single), single[name], grad.to(device))[0]
        assert torch.equal(found, expected)


@every_op
@every_layout
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("channels", [1, 31, 32, 33, 100])
def test_half_precision_is_float32_rounded_once(isa, device, case, layout, dtype, channels, poison):
    half = case.tensors(2, channels, 20, (12, 19), dtype, device, layout)
    # Boxes and offsets may be in half precision, too.
    short = {n: t.detach().to(dtype).requires_grad_(t.requires_grad) for n, t in half.items()}
    for inputs in (half, short) if channels == 33 else (half,):
        grad = torch.randn(case(half).shape, device=device).to(dtype)
        wide = case.cast(inputs, torch.float32, device, layout)
        found, expected = (case.with_gradients(tensors, grad) for tensors in (inputs, wide))
        for name, a, b in zip(("pooled", *case.gradients), found, expected, strict=True):
            assert a.dtype == (dtype if name == "pooled" else inputs[name].dtype)
            if name not in case.reordered_sums:
                assert torch.equal(a, b.to(a.dtype)), name
            elif a.dtype == torch.float32:
                close(a, b, 1e-5, 1e-5)
            else:  # half a unit in the last place, and the rounding of sums in another order
                half_unit = torch.finfo(dtype).eps / 2
                twice = "gradients are rounded once" in case.exceptions
                close(a, b, half_unit * b.abs().max().item() if twice else 2e-6, half_unit)


@every_op
def test_boxes_are_not_rounded_to_the_dtype_of_the_map(device, case):
    half = case.tensors(size=(9, 1100), dtype=torch.float16, device=device)
    with torch.no_grad():  # float16 has no odd numbers above 2048
        half["boxes"][:, 1] = 2049 + 2 * torch.arange(8)
        half["boxes"][:, 3] = 6 if case.columns == 6 else half["boxes"][:, 1] + 6
    assert not torch.equal(case(half), case(half | {"boxes": half["boxes"].half()}))
    single, double = (case.tensors(dtype=t, device=device) for t in (torch.float32, torch.float64))
    assert torch.equal(case(single | {"boxes": double["boxes"]}), case(single))
    assert torch.equal(case(double | {"boxes": single["boxes"]}), case(double))


@every_case
@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_run_and_thread_count_give_the_same_bits(isa, case, layout, dtype, two_threads):
    tensors = case.tensors(2, 33, 40, (9, 11), dtype, layout=layout)
    one, two = two_threads(lambda: case.with_gradients(tensors))
    loops = detops._C.shared_loops()
    detops._C.limit_grain(1)  # otherwise threads would not share such small loops
    try:
        _, shared = two_threads(lambda: case.with_gradients(tensors))
    finally:
        detops._C.limit_grain(2**63 - 1)
    assert detops._C.shared_loops() > loops
    repeated = case.with_gradients(tensors)
    for a, *others in zip(one, two, shared, repeated, strict=True):
        assert all(torch.equal(a, b) for b in others)


def with_gaps(x, layout=LAYOUTS[0]):
    """Returns the same values, with a gap of one element in each dimension."""
    for dim in range(x.dim()):
        x = x.repeat_interleave(2, dim)
    return x.contiguous(memory_format=layout)[(slice(None, None, 2),) * x.dim()]


@every_op
@every_layout
def test_pooling_accepts_strided_tensors(device, case, layout):
    dense, strided = case.tensors(device=device, layout=layout), {}
    for name, x in dense.items():
        parts = with_gaps(x.detach(), layout if name.startswith("input") else LAYOUTS[0])
        strided[name] = parts.requires_grad_(x.requires_grad)
    expected = case.with_gradients(dense)
    grad = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(1)).to(device)
    transposed_grad = grad.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    for tensors, output_grad in (
        (strided, grad),
        (dense, transposed_grad),
        (dense, with_gaps(grad)),
    ):
        for a, b in zip(case.with_gradients(tensors, output_grad), expected, strict=True):
            assert torch.equal(a, b)
    one = torch.ones((), device=device).expand_as(grad)  # the gradient of a sum
    expected = case.with_gradients(dense, one.clone())
    for a, b in zip(case.with_gradients(dense, one), expected, strict=True):
        assert torch.equal(a, b)
