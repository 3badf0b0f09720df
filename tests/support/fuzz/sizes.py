"""Solves an op's contract for sizes that the op accepts."""

import random
import re
from collections.abc import Callable
from typing import Any

from detops.contract import Contract
from detops.contract_call import compile_expression, parse_dimensions

SMALL = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 65)
SMALL_WEIGHTS = (3, 16, 16, 14, 10, 8, 6, 6, 6, 4, 3, 2, 2, 1, 1)
LARGE = (31, 64, 100, 257, 600, 33_000)  # rows; some ops switch the kernel variant in between
# Sizes that may be large. Only the ops in LINEAR_IN_ROWS use the largest number.
ROWS = ("N", "K", "M")
ROWS_OF = {"mlp": ("B", "H", "I")}  # keyed by name without _forward and _backward
LINEAR_IN_ROWS = ("nms", "batched_nms", "nms_padded")
# Sizes that a contract only checks, in terms of sizes that may be anything.
_PLANES = {"planes": "some * pooled_height * pooled_width"}
_PARTS = {
    "shifts": "2 * few",
    "output_channels": "some * few",
    "planes": "output_channels * group_size * group_size",
}
_CONVOLVED = {
    "parts": "few",
    "groups": "some",
    "group_channels": "parts * more",
    "C": "groups * group_channels",
    "O": "groups * few",
    "H": "max(1, tall + small - 2 * padding[0])",
    "W": "max(1, broad + small - 2 * padding[1])",
}
_WINOGRAD = {"H": "max(0, 3 + small - 2 * padding[0])", "W": "max(0, 3 + small - 2 * padding[1])"}
_ORIENTED = {"channels": "some * num_orientations"}
# Keyed by op, or by its name without _forward and _backward.
SOLUTIONS = {
    "ps_roi_align": _PLANES,
    "ps_roi_pool": _PLANES,
    "ps_roi_align_backward": {"channels": _PLANES["planes"]},
    "ps_roi_pool_backward": {"channels": _PLANES["planes"]},
    "riroi_align_rotated": _ORIENTED,
    "border_align": {"planes": "4 * some"},
    "decode_boxes": {"columns": "4 * some"},
    "deform_psroi_pool": _PARTS,
    "deform_psroi_pooling": _PARTS,
    "deform_conv2d": _CONVOLVED,
    "carafe": {"kernel_size": "2 * few - 1", "C": "some * group_size"},
    "masked_conv2d": {"H": "kh + small", "W": "kw + small"},
    "winograd_conv2d": _WINOGRAD,
    "winograd_conv2d_backward_weight": _WINOGRAD
    | {"h": "H + 2 * padding[0] - 2", "w": "W + 2 * padding[1] - 2"},
    "packed_conv2d": {
        "planes": "36 if kernel_size == [3, 3] and stride == dilation == [1, 1] else 1",
        "depth": "C if planes == 36 else kh * kw * C",
        "H": "max(0, tall + small - 2 * padding[0])",
        "W": "max(0, broad + small - 2 * padding[1])",
    },
    "ms_deform_attn": {"S": "sum([high * wide for high, wide in areas])"},
    "box_convert": {"columns": "4"},
    "rotated_feature_align": {"points": "1 + 4 * (some % 2)"},
}
FREE = {"some": 3, "few": 2, "more": 3, "small": 9}  # at least 1, except `small`


class Tensors:
    """The contract of one tensor: its dtype, and its shape in its last line."""

    def __init__(self, lines: list[str]) -> None:
        matches = [re.fullmatch(r"([\w ]+) \[(.*)\](?: or on the CPU)?", line) for line in lines]
        self.dtype = matches[-1][1]
        self.shapes = [parse_dimensions(match[2]) for match in matches]


class Sketch:
    """The parts of a contract from which arguments are drawn."""

    def __init__(self, contract: Contract) -> None:
        lines: dict[str, list[str]] = {}
        self.rules = contract.rules
        self.definitions = {
            name: compile_expression(text) for name, text in contract.definitions.items()
        }
        self.minimums: dict[str, int] = {}
        for line in contract.tensor_lines:
            name, text = line.split(": ", 1)
            lines.setdefault(name, []).append(text)
        self.tensors = {name: Tensors(texts) for name, texts in lines.items()}
        for tensor in self.tensors.values():
            self._read(tensor)
        base_name = contract.op.removesuffix("_forward").removesuffix("_backward")
        solutions = SOLUTIONS.get(contract.op) or SOLUTIONS.get(base_name) or {}
        self.definitions |= {name: compile_expression(text) for name, text in solutions.items()}
        self.rows = ROWS_OF.get(base_name, ROWS)
        self.max_rows = LARGE[-1] if contract.op in LINEAR_IN_ROWS else LARGE[-2]
        self.derived = [name for name in solutions if name in contract.arguments]

    def _read(self, tensor: Tensors) -> None:
        last = tensor.shapes[-1]
        for shape in tensor.shapes:
            for one, other in zip(shape, last, strict=True):
                if one.minimum:
                    self.minimums[one.size] = max(one.minimum, self.minimums.get(one.size, 0))
                # A size that a later line defines.
                if one.size.isidentifier() and one.size != other.size and other.code:
                    self.definitions[one.size] = other.code


class Sizes(dict[str, Any]):
    """The values of a contract's names in one call: given, computed, or drawn when first used."""

    def __init__(
        self, rng: random.Random, sketch: Sketch, args: dict[str, Any], max_rows: int
    ) -> None:
        super().__init__(args)
        self.rng, self.sketch, self.max_rows = rng, sketch, max_rows
        functions: dict[str, Callable[..., Any]] = {
            "given": lambda x: x is not None,
            "len": len,
            "max": max,
            "sum": sum,
        }
        self.update(functions)

    def __missing__(self, name: str) -> Any:
        code = self.sketch.definitions.get(name)
        if code is not None:
            value = self.value(code)
        elif name in FREE:
            value = self.rng.randint(0 if name == "small" else 1, FREE[name])
        elif name == "areas":
            value = [(self.rng.randint(1, 5), self.rng.randint(1, 5)) for _ in range(self["L"])]
        elif name.startswith("without "):
            value = self.rng.random() < 0.5
        elif name == "...":
            value = tuple(self._draw() for _ in range(self.rng.choice((0, 1, 1, 2, 3))))
        else:
            value = max(self._draw(name), self.sketch.minimums.get(name, 0))
        self[name] = value
        return value

    def _draw(self, name: str = "") -> int:
        if name in self.sketch.rows and self.rng.random() < 0.08:
            return min(self.max_rows, self.rng.choice(LARGE))
        return min(self.max_rows, self.rng.choices(SMALL, SMALL_WEIGHTS)[0])

    def value(self, code: Any) -> Any:
        """Evaluates an expression; 0 if that fails, e.g. by a division by 0."""
        try:
            return eval(code, {"__builtins__": {}}, self)
        except (ZeroDivisionError, IndexError, TypeError, OverflowError):
            return 0

    def shape(self, tensor: Tensors) -> list[int]:
        """Returns the sizes of a tensor."""
        found: list[int] = []
        for d in tensor.shapes[-1]:
            if d.size == "...":
                found += self["..."]
            elif d.optional and self[f"without {d.size}"]:
                continue
            elif d.code is None:
                found.append(
                    self["matched"] if self.get("aligned") else max(d.minimum, self._draw())
                )
            else:
                found.append(max(0, int(self.value(d.code))))
        return found
