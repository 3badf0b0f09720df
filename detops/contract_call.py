# SPDX-License-Identifier: MIT
"""Checks of one call against its contract: shapes, dtypes, devices and the values of names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import CodeType
from typing import Any

import torch
from torch import Tensor

FLOAT = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGER = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DISCRETE = (*INTEGER, torch.bool, torch.uint16, torch.uint32, torch.uint64)
# The members of each class of dtypes, and its description in messages.
DTYPE_CLASSES: dict[str, tuple[Callable[[torch.dtype], bool], str]] = {
    "float": (FLOAT.__contains__, "float32, float64, float16 or bfloat16"),
    "integer": (INTEGER.__contains__, "int64, int32, int16, int8 or uint8"),
    "numbers": (
        (*FLOAT, *INTEGER).__contains__,
        "float32, float64, float16 or bfloat16, or int64, int32, int16, int8 or uint8",
    ),
    "discrete": (DISCRETE.__contains__, "integers or bool"),
    "real": (
        (*FLOAT, *DISCRETE).__contains__,
        "bool, an integer or float32, float64, float16 or bfloat16",
    ),
    "mask": ((torch.bool, torch.uint8).__contains__, "bool or uint8"),
    "any": (lambda dtype: True, ""),
}
MAX_SIZE = 2**31 - 1
MAX_CHARACTERS = 80  # of a value in a message


def _is_number(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.dim() == 0
    return isinstance(x, (Real, torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_integer(x: Any) -> bool:
    if isinstance(x, Real):
        return isinstance(x, Integral) and -(2**63) <= int(x) < 2**63
    return _is_number(x)


# For each schema type of numbers or text: a predicate for the values that PyTorch converts to it,
# and its name in messages, singular and plural.
VALUE_TYPES: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "int": (_is_integer, "a 64-bit integer", "64-bit integers"),
    "float": (_is_number, "a number", "numbers"),
    "bool": (lambda x: _is_number(x) or "bool" in type(x).__name__, "a bool", "bools"),
    "str": (lambda x: isinstance(x, str), "a string", "strings"),
}


def compile_expression(text: str) -> CodeType:
    """Compiles an expression."""
    return compile(text.strip(), "csrc/contract/*.contract", "eval")


@dataclass(frozen=True)
class Dimension:
    """A size in the shape of a tensor; see csrc/contract/contract.h."""

    size: str
    code: CodeType | None
    minimum: int
    optional: bool


def parse_dimensions(text: str) -> list[Dimension]:
    """Parses the sizes between the brackets of a shape."""
    dimensions = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", text):
        size, _, minimum = part.strip().partition(" >= ")
        optional = size.endswith("?") and size != "?"
        size = size.removesuffix("?") if optional else size
        code = None if size in ("...", "_", "?") else compile_expression(size)
        dimensions.append(Dimension(size, code, int(minimum or 0), optional))
    return dimensions


class Call:
    """One call of an op: its arguments, and the values of names."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.sizes: dict[str, Any] = {}
        self.missing: set[str] = set()
        self.leading_sizes: tuple[Any, ...] | None = None
        self.first_tensor: tuple[str, Tensor] | None = None
        self.broken_bound = ""  # what messages append to sizes with bounds
        self.functions = {
            "len": lambda x: len(x),
            "size": lambda x, d: x.size(d),
            "count": lambda x: x.numel(),
        }

    def value(self, code: CodeType) -> Any:
        """Evaluates an expression."""
        names = {**self.functions, **self.arguments, **self.sizes}
        return eval(code, {"__builtins__": {}, "given": lambda x: x is not None}, names)

    def has_symbols(self, code: CodeType) -> bool:
        """Returns whether an expression contains a symbolic size."""
        names = {**self.arguments, **self.sizes}
        return any(isinstance(names.get(name), torch.SymInt) for name in code.co_names)

    def require(self, condition: Any, message: Callable[[], str]) -> None:
        """Raises unless the condition holds. A condition on symbols is deferred."""
        if isinstance(condition, bool) and condition:
            return
        torch._check(condition, lambda: f"detops.{self.name}: {message()}")

    def expected(
        self, dimensions: list[Dimension], known: dict[str, Any], missing: set[str]
    ) -> str:
        """Formats a shape: known sizes as numbers, without dimensions that other tensors lack."""

        def format_dimensions(with_optional: bool) -> str:
            sizes: list[str] = []
            for d in dimensions:
                if d.optional and not with_optional or d.size in missing:
                    continue
                if d.size == "..." and d.size in known:
                    sizes += map(str, self.leading_sizes or ())
                elif d.size in known:
                    sizes.append(str(known[d.size]))
                elif d.code is None or d.size.isidentifier() and d.size not in self.arguments:
                    bound = self.broken_bound if d.minimum else ""
                    sizes.append(d.size + bound.format(d.minimum))
                else:
                    sizes.append(str(self.value(d.code)))
            return f"[{', '.join(sizes)}]"

        full, short = format_dimensions(True), format_dimensions(False)
        return full if full == short else f"{short} or {full}"

    def shape(self, name: str, x: Tensor, dimensions: list[Dimension]) -> None:
        """Checks a tensor's shape, and binds the names that have no size yet."""
        known = self.sizes | ({} if self.leading_sizes is None else {"...": None})
        missing_before = set(self.missing)

        def message() -> str:
            shape = self.expected(dimensions, known, missing_before)
            return f"{name} must be {shape}, got {list(x.shape)}"

        fixed = [d for d in dimensions if d.size != "..."]
        missing = any(d.optional for d in dimensions) and x.dim() == len(fixed) - 1
        has_leading_sizes = len(fixed) < len(dimensions)
        self.require(
            x.dim() >= len(fixed) if has_leading_sizes else missing or x.dim() == len(fixed),
            message,
        )
        sizes = iter(x.shape)
        for d in dimensions:
            if d.size == "...":
                leading = tuple(next(sizes) for _ in range(x.dim() - len(fixed)))
                self.require(
                    self.leading_sizes is None or len(leading) == len(self.leading_sizes), message
                )
                for a, b in zip(leading, self.leading_sizes or leading, strict=True):
                    self.require(a == b, message)
                self.leading_sizes = self.leading_sizes or leading
                continue
            if d.optional and missing:
                self.require(d.size not in self.sizes, message)
                self.missing.add(d.size)
                continue
            self.require(d.size not in self.missing, message)
            size = next(sizes)
            if d.minimum:
                if isinstance(size, int):
                    small, large = size < d.minimum, size > MAX_SIZE
                    self.broken_bound = " >= {}" if small else f" <= {MAX_SIZE}" if large else ""
                    self.require(not large, message)
                self.require(size >= d.minimum, message)
            if d.code is None:
                continue
            if d.size in self.sizes or d.size in self.arguments or not d.size.isidentifier():
                self.require(size == self.value(d.code), message)
            else:
                self.sizes[d.size] = size

    def dtype_of(self, text: str) -> torch.dtype:
        """Returns the dtype that `as x`, `wide x y` or `int64` stands for."""
        keyword, *names = text.split()
        if keyword not in ("as", "wide"):
            return getattr(torch, keyword)
        promoted = None
        for name in names:
            x = self.arguments.get(name)
            if isinstance(x, (list, tuple)):
                x = x[0]
            dtype = self.tensors()[0].dtype if x is None else x.dtype
            promoted = dtype if promoted is None else torch.promote_types(promoted, dtype)
        assert promoted is not None
        return torch.promote_types(promoted, torch.float32) if keyword == "wide" else promoted

    def tensors(self) -> list[Tensor]:
        """Returns all tensors among the arguments."""
        found: list[Tensor] = []
        for x in self.arguments.values():
            found += [x] if isinstance(x, Tensor) else []
            found += [y for y in x if isinstance(y, Tensor)] if isinstance(x, (list, tuple)) else []
        return found

    def dtype(self, name: str, x: Tensor, text: str) -> None:
        """Checks a tensor's dtype."""
        if text in DTYPE_CLASSES:
            accepts, description = DTYPE_CLASSES[text]
            expected = f"be {description}"
            is_accepted = accepts(x.dtype)
        else:
            required = self.dtype_of(text)
            is_accepted = x.dtype == required
            expected = f"be {dtype_name(required)}"
            if text.startswith("as "):
                expected = f"have the dtype of {text[3:]} ({dtype_name(required)})"
        self.require(is_accepted, lambda: f"{name} must {expected}, got {dtype_name(x.dtype)}")

    def same_dtype(self, name: str, x: Tensor, first: Tensor) -> None:
        """Checks that a tensor of a list has the dtype of the first."""
        expected, got = dtype_name(first.dtype), dtype_name(x.dtype)
        self.require(
            x.dtype == first.dtype, lambda: f"{name} must share one dtype ({expected}), got {got}"
        )

    def device(self, name: str, x: Tensor, allow_cpu: bool) -> None:
        """Checks that a tensor is on the device of the first, or on the CPU if allowed."""
        if self.first_tensor is None:
            self.first_tensor = name, x
        first, other = self.first_tensor
        or_on_cpu = " or on the CPU" if allow_cpu else ""
        self.require(
            x.device == other.device or allow_cpu and x.device.type == "cpu",
            lambda: (
                f"{name} must be on the device of {first} ({other.device}){or_on_cpu}, "
                f"got {x.device}"
            ),
        )


def check_dense(op: str, name: str, x: Any) -> None:
    """Rejects anything but a tensor, and sparse, mkldnn, quantized and nested tensors.

    Raises:
        RuntimeError: ``x`` is one of these.
    """
    if not isinstance(x, Tensor):
        raise RuntimeError(f"detops.{op}: {name} must be a tensor, got {type_name(x)}")
    if x.layout != torch.strided:
        raise RuntimeError(f"detops.{op}: {name} must be strided, got {x.layout}")
    if x.is_nested or x.is_quantized:
        kind = "nested" if x.is_nested else "quantized"
        raise RuntimeError(f"detops.{op}: {name} must not be {kind}")


def check_list(op: str, name: str, tensors: Any) -> None:
    """Rejects anything but a list of tensors on one device that pass :func:`check_dense`.

    Raises:
        RuntimeError: ``tensors`` is anything else.
    """
    if not isinstance(tensors, (list, tuple)):
        got = type_name(tensors)
        raise RuntimeError(f"detops.{op}: {name} must be a list of tensors, got {got}")
    for i, x in enumerate(tensors):
        check_dense(op, f"{name}[{i}]", x)
        if i and x.device != tensors[0].device:
            raise RuntimeError(
                f"detops.{op}: {name}[{i}] must be on the device of {name}[0] "
                f"({tensors[0].device}), got {x.device}"
            )


def type_name(x: Any) -> str:
    """Returns ``numpy.ndarray`` for an array, ``list`` for a list and ``None`` for ``None``."""
    name = f"{type(x).__module__}.{type(x).__qualname__}"
    return "None" if x is None else name.removeprefix("builtins.")


def described(x: Any) -> str:
    """Returns the value of a number, a string or a list, and the type of anything else."""
    if isinstance(x, str):
        return shown(repr(x))
    return shown(x) if isinstance(x, (Real, list, tuple)) else type_name(x)


def dtype_name(dtype: torch.dtype) -> str:
    """Returns ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def shown(value: Any) -> str:
    """Formats a value for messages: at most 80 characters, without NUL, which ends C strings."""
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, Tensor):
        text = str(list(value.shape))
    elif isinstance(value, (list, tuple)):
        text = f"[{', '.join(map(shown, value[:MAX_CHARACTERS]))}]"
    else:
        text = str(value)
    cut = text[:MAX_CHARACTERS].replace("\0", "\\0")
    return cut if len(text) <= MAX_CHARACTERS else f"{cut}..."
