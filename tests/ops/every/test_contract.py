"""C++ (csrc/contract) checks calls and Python checks fake tensors, with the same messages."""

import math
import re

import pytest
import torch
from fuzz.draw import op_sketch
from raw_calls import arguments, calls
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_leaves, tree_map_only

import detops
from detops import contract as contract_module
from detops.contract import read
from detops.contract_call import compile_expression
from detops.registration import CONTRACTS

# An op without outputs in its contract is composed of other ops.
OPS = [name for name, contract in CONTRACTS.items() if contract.outputs and name in calls()]
VALUE_DEPENDENT = [
    name
    for name in OPS
    if any(d.size == "?" for line in CONTRACTS[name].outputs for d in line.dimensions)
]


# Terms that appear in messages about values.
VALUE_TERMS = ("batch index", "indices", "level", "positions", "num_objects", "models")


def outcome(op, args):
    """Returns the sizes, dtypes and strides of the results, or the error message."""
    try:
        results = getattr(torch.ops.detops, op)(**args)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    results = [results] if isinstance(results, Tensor) else results
    return [(list(x.shape), x.dtype, list(x.stride())) for x in results]


def eager_and_fake(op, args):
    eager = outcome(op, args)
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
        fake = outcome(op, tree_map_only(Tensor, mode.from_tensor, args))
    return eager, fake


@pytest.mark.parametrize("op", [op for op in OPS if op not in VALUE_DEPENDENT])
def test_fake_results_match_real_results(op):
    args = arguments(op)
    eager, fake = eager_and_fake(op, args)
    assert isinstance(eager, list) and eager == fake
    layout = torch.channels_last
    in_channels_last = {
        name: x.contiguous(memory_format=layout) if isinstance(x, Tensor) and x.dim() == 4 else x
        for name, x in args.items()
    }
    eager, fake = eager_and_fake(op, in_channels_last)
    assert isinstance(eager, list) and eager == fake


def invalid_variants(value):
    """Yields wrong or unusual variants of an argument."""
    if isinstance(value, Tensor):
        yield value.unsqueeze(0)
        yield value.to(torch.int16)
        yield value.to(torch.float64)
        yield value.bool()
        yield value.to(torch.complex64)
        for dim in range(value.dim()):
            yield value.narrow(dim, 0, 0)
            yield torch.cat([value, value], dim)
        if value.dim():
            yield value[0]
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        yield from (0, -1, 3, 2**31, 2**40)
    elif isinstance(value, float):
        yield from (0.0, -1.0, math.nan, math.inf)
    elif isinstance(value, str):
        yield "none of these"
    elif isinstance(value, (list, tuple)) and value:
        yield value[:-1]
        yield [*value, value[-1]]
        if isinstance(value[0], (int, float)) and not isinstance(value[0], bool):
            for number in invalid_variants(value[0]):
                yield [number, *value[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_eager_and_fake_errors_have_the_same_message(op):
    rejected = 0
    for name, value in arguments(op).items():
        for k, changed in enumerate(invalid_variants(value)):
            if isinstance(changed, int) and changed == 2**31 or "1099511627776" in str(changed):
                changed = changed if "pooled" in name or "size" in name else value
            eager, fake = eager_and_fake(op, arguments(op) | {name: changed})
            if isinstance(fake, str):
                rejected += 1
                assert eager == fake, (name, k)
                assert eager.startswith("detops."), (name, k)
            elif isinstance(eager, str):  # depends on values, which fake tensors lack
                assert any(string in eager for string in VALUE_TERMS), eager
            elif op not in VALUE_DEPENDENT:
                assert eager == fake, (name, k)
    assert rejected > 0 or op == "gdh_forward"


def limits():
    """Yields op, size names and message for each limit in a contract."""
    read_requirement = contract_module._requirement

    def read_and_store_text(text):
        check = read_requirement(text)
        check.text = text
        return check

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract_module, "_requirement", read_and_store_text)
        found = contract_module.read(detops._C.contracts)
    for op in OPS:
        texts = [getattr(check, "text", "") for check in found[op].checks]
        for text in texts:
            if text.startswith("limit "):
                condition, message = text.removeprefix("limit ").split(" | ")
                names = compile_expression(condition.split(" and ")[0]).co_names
                yield op, [*dict.fromkeys(names)], message.split(",")[0]


@pytest.mark.parametrize(("op", "names", "message"), [*limits()])
def test_eager_and_fake_reject_sizes_beyond_a_limit(op, names, message):
    """Each large dimension is expanded: its elements share memory."""
    args = arguments(op)
    large = 2**31 if len(names) == 1 else 65_600
    for name, tensor in op_sketch(op).tensors.items():
        if args[name] is None:
            continue
        for d, dimension in enumerate(tensor.shapes[0]):
            if dimension.size in names:
                sizes = list(args[name].shape)
                sizes[d] = large
                args[name] = args[name].narrow(d, 0, 1).expand(sizes)
    args |= {name: large for name in names if name in args}
    eager, fake = eager_and_fake(op, args)
    assert eager == fake
    assert re.fullmatch(rf"detops\.\w+: {message}, .*got .*", eager)


def bounded_dimensions():
    """Yields the bounded dimensions of each tensor; for a list, of its first tensor."""
    for op in OPS:
        for name, tensor in op_sketch(op).tensors.items():
            sides = [d for d, dimension in enumerate(tensor.shapes[0]) if dimension.minimum]
            yield from ((op, name, d) for d in sides)


@pytest.mark.parametrize(("op", "name", "d"), [*bounded_dimensions()])
def test_eager_and_fake_reject_sides_beyond_32_bits(op, name, d):
    """The kernels index rows and columns with 32 bits."""
    args = arguments(op)[name]
    for size in (2**31, 2**40):
        x = args[0] if isinstance(args, list) else args
        if x is None:
            continue
        sizes = list(x.shape)
        sizes[d] = size
        x = x.narrow(d, 0, 1).expand(sizes)
        eager, fake = eager_and_fake(
            op, arguments(op) | {name: [x] if isinstance(args, list) else x}
        )
        assert eager == fake
        side = re.escape(" <= 2147483647")
        assert re.fullmatch(rf"detops\.\w+: {name} must be \[.*{side}.*\], got .*", eager)


@pytest.mark.parametrize("size", [2**31 - 1, 2**30])
def test_eager_and_fake_reject_results_that_are_too_large(size):
    for op in ("roi_align_forward", "roi_pool_forward", "ps_roi_align_forward"):
        for count in (0, 5):
            args = arguments(op) | {"pooled_height": size, "pooled_width": size}
            if op.startswith("ps"):
                args["input"] = args["input"][:, :0]
            args["boxes"] = args["boxes"][:count]
            eager, fake = eager_and_fake(op, args)
            channels = args["input"].size(1)
            expected = f"a result of {[count, channels, size, size]} is too large"
            assert eager == fake == f"detops.{op.removesuffix('_forward')}: {expected}"


def test_eager_and_fake_reject_too_many_dimensions():
    x = torch.zeros([1] * 9)
    eager, fake = eager_and_fake("axpy_forward", {"x": x, "y": x, "alpha": 2.0})
    assert eager == fake == "detops.axpy: a result must have at most 8 dimensions"


@pytest.mark.parametrize(
    "string",
    ["iou\0x", "\0", "x" * 80, "x" * 81, "é" * 80, "é" * 81, "x" * 10**6, "\0" * 81],
    ids=range(8),
)
def test_eager_and_fake_errors_format_strings_identically(string):
    eager, fake = eager_and_fake("box_iou_forward", arguments("box_iou_forward") | {"kind": string})
    printed = string[:80].replace("\0", "\\0") + "..." * (len(string) > 80)
    expected = f"kind must be iou, iof, giou, diou or ciou, got {printed}"
    assert eager == fake == f"detops.box_iou: {expected}"


@pytest.mark.parametrize("count", [3, 26, 27, 28, 80, 81, 10**6])
def test_eager_and_fake_errors_format_lists_identically(count):
    op = "deform_conv2d_forward"
    eager, fake = eager_and_fake(op, arguments(op) | {"stride": [1] * count})
    printed = f"[{', '.join(['1'] * count)}]"
    printed = printed[:80] + "..." * (len(printed) > 80)
    expected = f"stride must be one number or a pair, got {printed}"
    assert eager == fake == f"detops.deform_conv2d: {expected}"


# Sizes that depend only on integer arguments: kernel_size ** 2.
FIXED_SIZES = {"carafe_backward": {9}}


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in OPS if op not in VALUE_DEPENDENT])
def test_named_sizes_stay_symbolic(op):
    """Every size that the contract names may have any value."""
    dynamic_mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))

    def symbolic(x):
        dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
        return dynamic_mode.from_tensor(x, symbolic_context=dynamic)

    args = tree_map_only(Tensor, symbolic, arguments(op))
    with dynamic_mode:
        results = getattr(torch.ops.detops, op)(**args)
    results = [results] if isinstance(results, Tensor) else results
    sizes = [d.size for line in CONTRACTS[op].outputs for d in line.dimensions]
    numbers = {0, 1, *(int(size) for size in sizes if size.isdigit())}
    numbers |= {x for x in tree_leaves(arguments(op)) if isinstance(x, int)}
    numbers |= FIXED_SIZES.get(op, set())
    for x in results:
        for size in x.shape:
            value = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
            assert value is None or value in numbers, (op, x.shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f(Tensor x) -> Tensor\n  x: float [N, M >= 2]\n  -> as x [M, N]\n", "M >= 2"),
        (
            "f(Tensor x) -> Tensor\n  x: float [N, 1?, M >= 2]\n  -> as x [M, N]\n",
            r"x must be \[N, M >= 2\] or \[N, 1, M >= 2\], got \[3, 1\]",
        ),
        ("f(Tensor x) -> Tensor\n  x: float [N, M]\n  N == 7 | N is {N + 1}\n", "N is 4"),
        ("group g\n  x: real [N]\n\nf(Tensor x) -> Tensor\n  use g\n", r"x must be \[N\]"),
        ("f(Tensor x, str s) -> Tensor\n  called g for a\n  x: any [N]\n", r"detops.g: x must"),
    ],
)
def test_contract_text_gives_the_expected_error(text, message):
    contract = read(text)["f"]
    with pytest.raises(RuntimeError, match=message):
        contract.check({"x": torch.zeros(3, 1), "s": "a"})


B = torch.rand(3, 4)
R = torch.rand(3, 5)
CALLS_WITH_STRINGS = {
    "box_area": (B,),
    "box_iou": (B, B),
    "generalized_box_iou_loss": (B, B),
    "distance_box_iou_loss": (B, B),
    "complete_box_iou_loss": (B, B),
    "rotated_iou_loss": (R, R),
    "sigmoid_focal_loss": (B, B),
    "softmax_focal_loss": (B, torch.zeros(3, dtype=torch.long)),
}


COLUMNS = {"xywhr": 5, "cxcywhr": 5, "xyxyxyxy": 8}


def test_calls_cover_every_composite_op_with_string_options():
    found = {op for op, contract in CONTRACTS.items() if contract.rules and not contract.outputs}
    assert {op for op in found if any(string_rules(op))} == set(CALLS_WITH_STRINGS)


def string_rules(op):
    rules = CONTRACTS[op].rules
    return [(name, rule) for name, rule in rules.items() if " or " in rule]


@pytest.mark.parametrize("op", CALLS_WITH_STRINGS)
def test_composite_ops_accept_the_strings_of_the_contract(op):
    for name, rule in string_rules(op):
        for call in (getattr(detops, op), getattr(torch.ops.detops, op)):
            for string in CONTRACTS[op].keywords[name]:
                columns = COLUMNS.get(string)
                args = [torch.rand(3, columns)] * 2 if columns else CALLS_WITH_STRINGS[op]
                call(*args, **{name: string})
            with pytest.raises(ValueError) as error:
                call(*CALLS_WITH_STRINGS[op], **{name: "other"})
            assert str(error.value) == f"detops.{op}: {name} must be {rule}, got other"


@pytest.mark.parametrize("op", ["rotated_iou_loss", "lltm_cell"])
def test_errors_of_composite_ops_name_the_op(op):
    args = arguments(op)
    for name, x in args.items():
        if isinstance(x, Tensor):
            for changed in (x.bool(), x[:-1] if name != "boxes1" else x[:, :-1]):
                for call in (getattr(detops, op), getattr(torch.ops.detops, op)):
                    with pytest.raises(RuntimeError, match=f"^detops.{op}: "):
                        call(**args | {name: changed})
