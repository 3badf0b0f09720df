"""Calls are checked by csrc/contract in C++, fake tensors in Python: in the same words."""

import math

import pytest
import torch
from raw_calls import arguments
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._pytree import tree_leaves, tree_map_only

import detops
from detops.contract import read
from detops.registration import CONTRACTS

# An op without outputs in its contract is made of others.
OPS = [name for name, contract in CONTRACTS.items() if contract.outputs and name in arguments()]
BY_VALUES = [
    name
    for name in OPS
    if any(d.size == "?" for line in CONTRACTS[name].outputs for d in line.dimensions)
]


# What messages about values speak of.
OF_VALUES = ("batch index", "indices", "level", "positions", "num_objects", "models")


def outcome(op, given):
    """The sizes, dtypes and strides of the results, or the error."""
    try:
        results = getattr(torch.ops.detops, op)(**given)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    results = [results] if isinstance(results, Tensor) else results
    return [(list(x.shape), x.dtype, list(x.stride())) for x in results]


def both(op, given):
    eager = outcome(op, given)
    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
        fake = outcome(op, tree_map_only(Tensor, mode.from_tensor, given))
    return eager, fake


@pytest.mark.parametrize("op", [op for op in OPS if op not in BY_VALUES])
def test_fake_results_are_like_real_ones(op):
    given = arguments()[op]
    eager, fake = both(op, given)
    assert isinstance(eager, list) and eager == fake
    layout = torch.channels_last
    turned = {
        name: x.contiguous(memory_format=layout) if isinstance(x, Tensor) and x.dim() == 4 else x
        for name, x in given.items()
    }
    eager, fake = both(op, turned)
    assert isinstance(eager, list) and eager == fake


def changes(value):
    """What is wrong with one argument, or at least unusual."""
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
            for number in changes(value[0]):
                yield [number, *value[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_the_same_words_for_bad_input(op):
    refused = 0
    for name, value in arguments()[op].items():
        for k, changed in enumerate(changes(value)):
            if isinstance(changed, int) and changed == 2**31 or "1099511627776" in str(changed):
                changed = changed if "pooled" in name or "size" in name else value
            eager, fake = both(op, arguments()[op] | {name: changed})
            if isinstance(fake, str):
                refused += 1
                assert eager == fake, (name, k)
                assert eager.startswith("detops."), (name, k)
            elif isinstance(eager, str):  # values alone, which fake tensors have not
                assert any(word in eager for word in OF_VALUES), eager
            elif op not in BY_VALUES:
                assert eager == fake, (name, k)
    assert refused > 0 or op == "gdh_forward"


# Of sizes that numbers alone decide: kernel_size ** 2.
DECIDED = {"carafe_backward": {9}}


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in OPS if op not in BY_VALUES])
def test_sizes_stay_symbols(op):
    """Each size that the contract has a name for may be any other, too."""
    free = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))

    def symbolic(x):
        dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
        return free.from_tensor(x, symbolic_context=dynamic)

    given = tree_map_only(Tensor, symbolic, arguments()[op])
    with free:
        results = getattr(torch.ops.detops, op)(**given)
    results = [results] if isinstance(results, Tensor) else results
    sizes = [d.size for line in CONTRACTS[op].outputs for d in line.dimensions]
    numbers = {0, 1, *(int(size) for size in sizes if size.isdigit())}
    numbers |= {x for x in tree_leaves(arguments()[op]) if isinstance(x, int)}
    numbers |= DECIDED.get(op, set())
    for x in results:
        for size in x.shape:
            whole = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
            assert whole is None or whole in numbers, (op, x.shape)


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
def test_the_language(text, message):
    contract = read(text)["f"]
    with pytest.raises(RuntimeError, match=message):
        contract.check({"x": torch.zeros(3, 1), "s": "a"})


B = torch.rand(3, 4)
R = torch.rand(3, 5)
WITH_WORDS = {
    "box_area": (B,),
    "box_iou": (B, B),
    "generalized_box_iou_loss": (B, B),
    "distance_box_iou_loss": (B, B),
    "complete_box_iou_loss": (B, B),
    "rotated_iou_loss": (R, R),
    "sigmoid_focal_loss": (B, B),
    "softmax_focal_loss": (B, torch.zeros(3, dtype=torch.long)),
}


def test_every_composition_with_words_is_here():
    found = {op for op, contract in CONTRACTS.items() if contract.rules and not contract.outputs}
    assert {op for op in found if any(words_of(op))} == set(WITH_WORDS)


def words_of(op):
    rules = CONTRACTS[op].rules
    return [(name, rule) for name, rule in rules.items() if " or " in rule]


@pytest.mark.parametrize("op", WITH_WORDS)
def test_words_of_compositions_are_those_of_the_contract(op):
    for name, rule in words_of(op):
        for call in (getattr(detops, op), getattr(torch.ops.detops, op)):
            for word in CONTRACTS[op].words[name]:
                call(*WITH_WORDS[op], **{name: word})
            with pytest.raises(ValueError) as error:
                call(*WITH_WORDS[op], **{name: "other"})
            assert str(error.value) == f"detops.{op}: {name} must be {rule}, got other"
