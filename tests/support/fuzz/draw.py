"""Draws calls. Most are valid, because ops reject invalid ones before much of their code runs."""

import functools
import math
import random
from typing import Any

import raw_calls
import torch

from detops.contract_call import INTEGER
from detops.registration import CONTRACTS

from .case import MOODS, TAME, WILD, Case, map_tensors, tensors_of, written_by
from .sizes import Sizes, Sketch, Tensors
from .values import DTYPES_BY_CLASS, EXTREMES, FLOATS, OTHERS, Values, random_layout

MAX_ELEMENTS = 60_000  # of a tensor, except for lists of boxes
EXTREME_INTEGERS = (0, -1, -2, 5, 64, 255, 4096, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))
# Values of numbers without bounds, by argument name; `None` omits the argument.
NUMBERS: dict[str, tuple[Any, ...]] = {
    "sampling_ratio": (-1, 0, 1, 2, 2, 3, 5),
    "iou_threshold": (0.0, 0.3, 0.5, 0.5, 0.7, 1.0, -0.5),
    "score_threshold": (None, 0.0, 0.25, 0.5),
    "skip_box_threshold": (0.0, 0.25),
    "max_output": (None, 0, 1, 3, 10, 1000),
    "spatial_scale": (0.0625, 0.25, 0.5, 0.5, 1.0, 1.5),
    "spatial_scales": (0.0625, 0.25, 0.5, 1.0),
    "canonical_scale": (4.0, 224.0),
    "canonical_level": (0, 2, 4),
    "alpha": (0.25, 0.25, 0.5, 0.0, 1.0, -1.0),
    "gamma": (2.0, 0.0, 1.0, 1.5, 0.5),
    "eps": (1e-7, 1e-3, 0.0),
    "min_score": (0.0, 1e-3, 0.3),
    "clip": (4.135166556742356, 1.0),
    "threshold": (0.5, 0.0, -1.0),
    "height": (1, 3, 7, 8, 20, 33),
    "width": (1, 2, 7, 16, 31, 65),
    "heights": (1, 2, 5, 9),
    "widths": (1, 3, 6, 8),
    "outputs": (0, 1, 2, 5, 32, 33),
    "padding": (0, 0, 1, 2, 3),
    "stride": (1, 1, 1, 2, 3),
    "dilation": (1, 1, 1, 2),
    "kernel_size": (1, 1, 3, 3, 3, 2, 5),
    "pool_size": (1, 2, 5, 10),
    "no_trans": (0, 1),
}
STRINGS = {
    "fmt": ("xyxy", "xywh", "cxcywh"),
    "in_fmt": ("xyxy", "xywh", "cxcywh"),
    "out_fmt": ("xyxy", "xywh", "cxcywh"),
}
# Lists with their own length. The schema or the contract determines the length of others.
LISTS = {"spatial_scales": "levels", "heights": "levels", "widths": "levels", "inputs": "levels"}


@functools.cache
def op_sketch(op: str) -> Sketch:
    """Returns the sketch of an op's contract."""
    return Sketch(CONTRACTS[op])


@functools.cache
def op_arguments(op: str) -> list[tuple[str, str, int | None]]:
    """Returns the arguments of an op, their types, and the lengths of fixed-length lists."""
    formals = getattr(torch.ops.detops, op).default._schema.arguments
    return [(a.name, str(a.real_type), a.N) for a in formals]


def promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Promotes two dtypes; returns the first if PyTorch cannot promote them, e.g. 8-bit floats."""
    try:
        return torch.promote_types(a, b)
    except RuntimeError:
        return a


class Draw:
    """Draws one case of an op; equal seeds give equal cases."""

    def __init__(self, op: str, seed: int, mood: str | None, rng: random.Random) -> None:
        self.op, self.seed, self.rng, self.sketch = op, seed, rng, op_sketch(op)
        self.mood = mood or rng.choice(MOODS)
        self.args: dict[str, Any] = {}
        self.has_extreme_size = False
        # No RoIs, images, boxes or rows. Gradients still have the sizes given by numbers.
        self.is_empty = self.mood == WILD and "backward" not in op and rng.random() < 0.1
        self.max_elements = max(MAX_ELEMENTS, 4 * self.sketch.max_rows)
        self.default_dtype = rng.choices(FLOATS, (6, 3, 1, 1))[0]

    def number(self, name: str, kind: str) -> Any:
        """Draws a number, flag or string."""
        rng, rule = self.rng, self.sketch.rules.get(name, "")
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "str":
            strings = STRINGS.get(name) or rule.replace(" or ", ", ").split(", ")
            return rng.choice(strings) if self.mood != WILD or rng.random() < 0.95 else "none"
        extreme = self.mood == WILD and rng.random() < (0.4 if self.is_empty else 0.12)
        if "float" in kind:
            if extreme:
                return rng.choice(EXTREMES)
            values = NUMBERS.get(name)
            return rng.choice(values) if values else round(2 * rng.random() + 0.01, 3)
        if extreme and (self.is_empty or not self.has_extreme_size):
            self.has_extreme_size = True  # two of these would request a product of work
            return rng.choice(EXTREME_INTEGERS)
        values = NUMBERS.get(name, (1, 1, 2, 2, 3, 4))
        if rule.startswith("in ["):
            low, high = map(int, rule[4:-1].split(", "))
            values = tuple(x for x in values if low <= x <= high)
        return rng.choice(values)

    def value(self, name: str, kind: str, size: int | None) -> Any:
        """Draws an argument that is not a tensor."""
        rng = self.rng
        if not kind.startswith("List["):
            if kind.startswith("Optional[") and rng.random() < 0.4:
                return None
            found = self.number(name, kind.removeprefix("Optional[").removesuffix("]"))
            return 3 if found is None and not kind.startswith("Optional[") else found
        if name == "weights":
            size = 4 if "coder" in self.op or "boxes" in self.op else rng.randint(1, 3)
        elif name in LISTS:
            size = self.levels
        size = 5 if name == "wanted" else 2 if size is None else size
        if self.mood == WILD and rng.random() < 0.03:
            size = rng.choice((0, 1, size + 1, 17, 65))
        return [self.number(name, kind[5:-1]) for _ in range(size)]

    def dtype(self, text: str) -> torch.dtype:
        """Draws a dtype of a class, or returns that of another tensor."""
        rng = self.rng
        if text == "float":
            return self.default_dtype if rng.random() < 0.85 else rng.choice(FLOATS)
        if text in DTYPES_BY_CLASS:
            return rng.choice(DTYPES_BY_CLASS[text])
        relation, *names = text.split()
        if relation not in ("as", "wide"):
            return getattr(torch, relation)
        known = [t.dtype for name in names for t in tensors_of(self.args.get(name))[:1]]
        found = functools.reduce(promote, known) if known else self.default_dtype
        return promote(found, torch.float32) if relation == "wide" else found

    def tensor(self, name: str, line: Tensors, values: Values, sizes: Sizes) -> torch.Tensor:
        """Draws a tensor."""
        rng = self.rng
        shape, dtype = sizes.shape(line), self.dtype(line.dtype)
        if self.mood == WILD:
            if rng.random() < 0.04 and shape:
                d = rng.randrange(len(shape))
                shape[d] = rng.choice((0, 1, shape[d] + 1, max(0, shape[d] - 1), 2 * shape[d]))
            elif rng.random() < 0.03:
                shape = rng.choice((shape[1:], [1, *shape], [], [0], [0] * len(shape)))
            if rng.random() < 0.04:
                dtype = rng.choice((*FLOATS, *INTEGER, *OTHERS))
        spread = math.prod(max(1, n) for n in shape)  # PyTorch computes strides from these sizes
        if math.prod(shape) > self.max_elements or spread >= 2**50:
            shape = [min(n, 3) for n in shape]
        return random_layout(values.tensor(name, shape, dtype), rng, self.mood)

    def case(self) -> Case:
        """Draws the complete call."""
        rng, sketch = self.rng, self.sketch
        self.levels = rng.choice((1, 2, 3, 4)) if rng.random() < 0.97 else rng.choice((0, 16, 17))
        present: dict[str, Any] = dict.fromkeys(sketch.rows, 0) if self.is_empty else {}
        for name, kind, size in op_arguments(self.op):
            if "Tensor" not in kind:
                self.args[name] = present[name] = self.value(name, kind, size)
            elif kind.startswith("Optional") and rng.random() < 0.4:
                self.args[name] = present[name] = None
            else:
                present[name] = [None] * self.levels if kind.startswith("List") else name
        # Below 0, any box suppresses any other. All pairs of boxes without area are compared,
        # slowly.
        max_rows = sketch.max_rows if self.args.get("iou_threshold", 0) >= 0 else 600
        for limit in (max_rows, 600, 60, 9, 3, 1):
            sizes = Sizes(rng, sketch, present, limit)
            for name in sketch.derived:  # numbers that other numbers determine
                del sizes[name]
                self.args[name] = sizes[name]
            if all(math.prod(sizes.shape(t)) <= self.max_elements for t in sketch.tensors.values()):
                break
        values = Values(self.op, rng, self.mood, sizes)
        for name, kind, _ in op_arguments(self.op):
            if name in self.args:
                continue
            line = sketch.tensors[name]
            if kind.startswith("List"):
                found = [self.tensor(name, line, values, sizes) for _ in present[name]]
                self.args[name] = (
                    found if self.mood == WILD else [t.to(self.default_dtype) for t in found]
                )
            else:
                self.args[name] = self.tensor(name, line, values, sizes)
        self.share_tensors()
        order = [name for name, _, _ in op_arguments(self.op)]
        args = {name: self.args[name] for name in order}
        return Case(self.op, self.seed, self.mood, args)

    def share_tensors(self) -> None:
        """Occasionally passes one tensor as two arguments."""
        if self.mood == TAME or self.rng.random() > 0.1:
            return
        tensors = [k for k, v in self.args.items() if isinstance(v, torch.Tensor)]
        for one in tensors:
            for other in tensors:
                a, b = self.args[one], self.args[other]
                if one < other and a.shape == b.shape and a.dtype == b.dtype:
                    self.args[other] = a
                    return


def mutated_call(op: str, seed: int, mood: str | None, rng: random.Random) -> Case:
    """Returns a mutated call of raw_calls.py, for an op whose contract is only its schema."""
    mood = mood or rng.choice(MOODS)
    args = dict(raw_calls.calls()[op])
    sizes = dict(N=2, C=3, H=raw_calls.H, W=raw_calls.W)
    values = Values(op, rng, mood, sizes)
    values.extent = 8.0
    draw = Draw(op, seed, mood, rng)

    def replace_values(name: str, x: torch.Tensor) -> torch.Tensor:
        shape = list(x.shape)
        if mood == WILD and shape and rng.random() < 0.1:
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 5))
        dtype = x.dtype if mood == TAME or rng.random() < 0.9 else rng.choice(FLOATS)
        return random_layout(values.tensor(name, shape, dtype), rng, mood)

    for name, kind, _ in op_arguments(op):
        if "Tensor" in kind and name not in written_by(op):
            args[name] = map_tensors(args[name], functools.partial(replace_values, name))
        elif "Tensor" in kind:
            args[name] = random_layout(args[name].clone(), rng, mood)
        elif mood == WILD and rng.random() < 0.1:
            args[name] = draw.number(name, kind)
    if mood == WILD and written_by(op) and rng.random() < 0.1:
        tensor_names = [name for name, kind, _ in op_arguments(op) if "Tensor" in kind]
        args[rng.choice(written_by(op))] = args[rng.choice(tensor_names)]
    return Case(op, seed, mood, args)


def draw(op: str, seed: int, mood: str | None = None, rng: random.Random | None = None) -> Case:
    """Returns the case of an op with this seed; ``rng`` replaces the default generator."""
    rng = rng or random.Random(f"{op} {seed}")
    tensors = [name for name, kind, _ in op_arguments(op) if "Tensor" in kind]
    is_complete = set(tensors) <= op_sketch(op).tensors.keys()
    return Draw(op, seed, mood, rng).case() if is_complete else mutated_call(op, seed, mood, rng)
