# SPDX-License-Identifier: MIT
"""The contracts of csrc/contract, applied to fake tensors.

csrc/contract/contract.h explains the grammar. C++ checks real calls. This module checks tensors
without memory, whose sizes may be symbols and stay symbolic. Both raise the same errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .contract_call import (
    FLOAT as FLOAT,
)
from .contract_call import (
    INTEGER as INTEGER,
)
from .contract_call import (
    MAX_SIZE as MAX_SIZE,
)
from .contract_call import (
    VALUE_TYPES,
    Call,
    check_dense,
    check_list,
    compile_expression,
    described,
    parse_dimensions,
    shown,
)
from .contract_call import (
    dtype_name as dtype_name,
)

Check = Callable[[Call], None]
# A bound on data-dependent sizes. Without one, their products overflow in compiled code.
MAX_ELEMENTS = 2**48
MAX_DIMENSIONS = 8
MAX_BYTES = 16  # per element, for any dtype


def _keywords(rule: str) -> list[str]:
    return rule.replace(" or ", ", ").split(", ")


def _rule(argument: str, text: str) -> Check:
    """Compiles a rule such as `name: at least 1`."""
    bound = [int(n) for n in re.findall(r"-?\d+", text)]
    accepts: Callable[[Any], Any]
    if text == "a number":
        accepts = lambda x: not math.isnan(x)  # noqa: E731
    elif text == "finite":
        accepts = math.isfinite
    elif text == "positive":
        text, accepts = "positive and finite", lambda x: math.isfinite(x) and x > 0
    elif text.startswith("at least "):
        accepts = lambda x: x >= bound[0]  # noqa: E731
    elif text.startswith("at most "):
        accepts = lambda x: x <= bound[0]  # noqa: E731
    elif text.startswith("in ["):
        accepts = lambda x: bound[0] <= x <= bound[1]  # noqa: E731
    else:
        accepts = _keywords(text).__contains__

    def check(call: Call) -> None:
        value = call.arguments[argument]
        for x in value if isinstance(value, (list, tuple)) else [value]:
            call.require(accepts(x), lambda: f"{argument} must be {text}, got {shown(value)}")

    return check


def _tensor(argument: str, text: str) -> Check:
    """Compiles the check of `name: float [N, 4]`."""
    match = re.fullmatch(r"([\w ]+) \[(.*)\]( or on the CPU)?", text)
    assert match is not None, text
    dtype, dimensions, allow_cpu = match[1], parse_dimensions(match[2]), bool(match[3])

    def check(call: Call) -> None:
        x = call.arguments[argument]
        for each in [x] if isinstance(x, Tensor) else x or []:
            call.shape(argument, each, dimensions)
            call.dtype(argument, each, dtype)
            if not isinstance(x, Tensor):
                call.same_dtype(argument, each, x[0])
            call.device(argument, each, allow_cpu)

    return check


def _requirement(text: str) -> Check:
    """Compiles the check of `expression | message`, which may begin with `limit`."""
    is_limit = text.startswith("limit ")
    condition, message = text.removeprefix("limit ").split(" | ", 1)
    # `and` would need the truth value of a symbol; separate requirements do not.
    codes = [compile_expression(part) for part in condition.split(" and ")]
    pieces = re.split(r"\{([^}]*)\}", message)
    placeholders = [compile_expression(placeholder) for placeholder in pieces[1::2]]

    def message_for(call: Call) -> str:
        values = [shown(call.value(placeholder)) for placeholder in placeholders]
        return "".join(a + b for a, b in zip(pieces[::2], [*values, ""], strict=True))

    def check(call: Call) -> None:
        for code in codes:
            if not (is_limit and call.has_symbols(code)):
                call.require(call.value(code), lambda: message_for(call))

    return check


def _binding(name: str, expression: str) -> Check:
    """Compiles `name = expression`, which binds the name."""
    code = compile_expression(expression)

    def check(call: Call) -> None:
        call.sizes[name] = call.value(code)

    return check


class OutputLine:
    """An output line such as `-> float [N, 4] like x if wanted`."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(
            r"([\w ]+) \[((?:[^\[\]]|\[[^\]]*\])*)\](?: like (\w+))?(?: for (\w+))?"
            r"(?: if (.+?)(?: else (\w+))?)?",
            text,
        )
        assert match is not None, text
        self.dtype, self.like, self.else_dtype = match[1], match[3], match[6]
        self.dimensions = parse_dimensions(match[2])
        self.repeat_count = compile_expression(match[4]) if match[4] else None
        self.condition = compile_expression(match[5]) if match[5] else None

    def allocate(self, call: Call, new_dynamic_size: Callable[[], Any]) -> list[Tensor]:
        """Allocates the output, or one for each repetition of the line."""
        if self.repeat_count:
            return [
                self._allocate_one(call, new_dynamic_size, i=i)
                for i in range(int(call.value(self.repeat_count)))
            ]
        return [self._allocate_one(call, new_dynamic_size)]

    def _allocate_one(
        self, call: Call, new_dynamic_size: Callable[[], Any], **names: int
    ) -> Tensor:
        first = call.tensors()[0]
        is_present = self.condition is None or call.value(self.condition)
        if not is_present and not self.else_dtype:
            return torch.empty(0, dtype=call.dtype_of(self.dtype), device=first.device)
        call.sizes.update(names)
        shape: list[Any] = []
        for d in self.dimensions:
            if d.size == "...":
                shape += call.leading_sizes or ()
            elif d.size == "?":
                shape.append(new_dynamic_size())
            elif d.size not in call.missing:
                assert d.code is not None
                shape.append(call.value(d.code))
        call.require(
            len(shape) <= MAX_DIMENSIONS,
            lambda: f"a result must have at most {MAX_DIMENSIONS} dimensions",
        )
        # A size of 0 counts as 1, as in contiguous strides.
        known = math.prod(max(1, size) for size in shape if isinstance(size, int))
        call.require(known * MAX_BYTES < 2**63, lambda: f"a result of {list(shape)} is too large")
        layout = torch.contiguous_format
        if self.like:
            like = call.arguments[self.like]
            layout = suggest_memory_format(like if isinstance(like, Tensor) else like[0])
        dtype = call.dtype_of(self.dtype if is_present else self.else_dtype)
        return torch.empty(shape, dtype=dtype, device=first.device, memory_format=layout)


@dataclass
class Contract:
    """The contract of one op."""

    schema: str
    op: str
    name: str
    arguments: list[str]
    types: list[str]
    tensors: dict[str, str]  # argument -> type, of tensors and tensor lists
    sizes: list[str]  # arguments of type SymInt or SymInt[]
    returns: int  # -1 for a list
    checks: list[Check] = field(default_factory=list)
    outputs: list[OutputLine] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # keyword -> name of the op in messages
    rules: dict[str, str] = field(default_factory=dict)  # argument -> rule, for non-tensors
    keywords: dict[str, list[str]] = field(default_factory=dict)  # argument -> keywords of its rule
    public: dict[str, str] = field(default_factory=dict)  # argument -> that of the public function
    definitions: dict[str, str] = field(default_factory=dict)  # name -> expression
    tensor_lines: list[str] = field(default_factory=list)
    output_lines: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        """Parses and adds a line."""
        if line.startswith("called "):
            name, _, keywords = line[7:].partition(" for ")
            self.name = self.name if self.names else name
            self.names |= dict.fromkeys(keywords.split(", ") if keywords else [], name)
        elif line.startswith("-> "):
            # Only C++ needs the dtype that a host function computes in.
            text = re.sub(r" in [\w ]+(?= \[)", "", line[3:])
            self.outputs.append(OutputLine(text))
            self.output_lines.append(text)
        elif " | " in line:
            self.checks.append(_requirement(line))
            # `pooled_height >= 1 and pooled_width >= 1 | output_size must be at least 1 x 1`
            if pair := re.match(r"(\w+) >= \d and (\w+) >= \d \| (\w+) must", line):
                self.public |= {pair[1]: pair[3], pair[2]: pair[3]}
        elif match := re.match(r"([\w, ]+): (.*)", line):
            for argument in match[1].split(", "):
                if argument in self.arguments:
                    self._read_argument(argument, match[2])
        else:
            name, expression = line.split(" = ", 1)
            self.definitions[name] = expression
            self.checks.append(_binding(name, expression))

    def _read_argument(self, argument: str, text: str) -> None:
        is_tensor = " [" in text and not text.startswith("in [")
        check = (_tensor if is_tensor else _rule)(argument, text)
        if is_tensor:
            self.tensor_lines.append(f"{argument}: {text}")
        else:
            self.rules[argument] = text
            self.keywords[argument] = _keywords(text)

        def unless_missing(call: Call) -> None:
            if call.arguments[argument] is not None:
                check(call)

        self.checks.append(unless_missing)

    def check_dense(self, arguments: dict[str, Any]) -> None:
        """Rejects arguments that no op accepts; see :func:`check_dense`."""
        for name, kind in self.tensors.items():
            if name not in arguments or kind.endswith("?") and arguments[name] is None:
                continue
            check = check_list if "[]" in kind else check_dense
            check(self.name, name, arguments[name])

    def explain_error(self, args: Sequence[Any], error: Exception) -> Exception:
        """Returns the error for an argument of a wrong kind, or ``error`` if there is none."""
        arguments = dict(zip(self.arguments, args, strict=False))
        try:
            self.check_dense(arguments)
            if not str(error).startswith(f"detops.{self.name}:"):
                self._check_values(arguments)
        except RuntimeError as wrong:
            return wrong
        return error

    def _check_values(self, arguments: dict[str, Any]) -> None:
        """Rejects values that PyTorch does not convert to the schema's number, bool or string."""
        for (name, value), kind in zip(arguments.items(), self.types, strict=False):
            base = kind.split("[")[0].removeprefix("Sym").rstrip("?").lower()
            if base not in VALUE_TYPES or kind.endswith("?") and value is None:
                continue
            accepts, singular, plural = VALUE_TYPES[base]
            is_pair = "[2]" in kind or name in self.public
            if "[" in kind and isinstance(value, (list, tuple)):
                wrong, expected = [x for x in value if not accepts(x)], plural
            elif "[]" in kind:
                wrong, expected = [value], f"a list of {plural}"
            else:
                wrong, expected = [] if accepts(value) else [value], plural if is_pair else singular
            if not wrong:
                continue
            if is_pair and isinstance(wrong[0], (list, tuple)):
                expected = "one integer or two"
            raise RuntimeError(
                f"detops.{self.name}: {self.public.get(name, name)} must be {expected}, "
                f"got {described(wrong[0])}"
            )

    def check(self, arguments: dict[str, Any]) -> Call:
        """Checks the arguments and raises the same errors as a real call.

        Raises:
            RuntimeError: an argument is not what the contract says.
        """
        strings = [value for value in arguments.values() if isinstance(value, str)]
        named = [self.names[string] for string in strings if string in self.names]
        call = Call(named[0] if named else self.name, arguments)
        self.check_dense(arguments)
        for name in self.sizes:
            value = arguments[name]
            for size in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(size, int):  # a bound on a symbol would restrict an exported program
                    call.require(
                        size <= MAX_SIZE,
                        lambda: f"{name} must be at most {MAX_SIZE}, got {shown(value)}",  # noqa: B023
                    )
        for check in self.checks:
            check(call)
        return call

    def check_keyword(self, argument: str, keyword: str) -> None:
        """Validates a keyword of a composite op, which never reaches C++.

        Raises:
            ValueError: the contract does not list the keyword.
        """
        if keyword not in self.keywords[argument]:
            rule = self.rules[argument]
            raise ValueError(f"detops.{self.name}: {argument} must be {rule}, got {shown(keyword)}")

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments of a call by name, with defaults for those it omits."""
        formals = getattr(torch.ops.detops, self.op).default._schema.arguments
        defaults = {formal.name: formal.default_value for formal in formals}
        return defaults | dict(zip(self.arguments, args, strict=False)) | kwargs

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the op's outputs for tensors without memory."""
        call = self.check(self.bind(*args, **kwargs))
        dynamic_sizes: list[Any] = []  # one symbol for all outputs of a call

        def new_dynamic_size() -> Any:
            if not dynamic_sizes:
                try:
                    context = torch.library.get_ctx()
                except RuntimeError:  # meta tensors have no context, unlike fake ones
                    name = next(iter(self.tensors))
                    raise NotImplementedError(
                        f"detops.{call.name}: {name} must have values, which determine the size of "
                        "the result, got a meta tensor"
                    ) from None
                dynamic_sizes.append(context.new_dynamic_size(max=MAX_ELEMENTS))
            return dynamic_sizes[0]

        outputs = [x for line in self.outputs for x in line.allocate(call, new_dynamic_size)]
        if self.returns == -1:
            return outputs
        return outputs[0] if self.returns == 1 else tuple(outputs[: self.returns])


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.strip() and not line.startswith("#"))


def read(text: str) -> dict[str, Contract]:
    """Parses the text of csrc/contract/*.contract files and returns the contracts by op."""
    contracts: dict[str, Contract] = {}
    checks: dict[str, list[str]] = {}  # group or op -> lines
    names: list[str] = []  # groups and ops that the next lines belong to
    in_body = False
    for line in _lines(text):
        if not line.startswith(" "):
            names = [] if in_body else names
            in_body = False
            if line.startswith("group "):
                names.append(line[6:])
                checks[line[6:]] = []
                continue
            ops, formals, result = re.fullmatch(r"([\w, ]+)\((.*)\) -> (.*)", line).groups()  # type: ignore[union-attr]
            declarations = [
                f.split("=")[0].split() for f in re.split(r", (?![^\[]*\])", formals) if f
            ]
            returns = (
                -1 if result.endswith("[]") else len([r for r in result.split(",") if r != "()"])
            )
            sizes = [
                declaration[-1]
                for declaration in declarations
                if declaration[0].startswith("SymInt")
            ]
            tensors = {
                declaration[-1]: declaration[0]
                for declaration in declarations
                if declaration[0].startswith("Tensor")
            }
            types, arguments = (
                [declaration[0] for declaration in declarations],
                [declaration[-1] for declaration in declarations],
            )
            for op in ops.split(", "):
                schema = f"{op}({formals}) -> {result}"
                contracts[op] = Contract(schema, op, op, arguments, types, tensors, sizes, returns)
                checks[op] = []
                names.append(op)
            continue
        in_body = True
        line = line.strip()
        used = line[4:].split(", ") if line.startswith("use ") else []
        for each in [each for name in used for each in checks[name]] if used else [line]:
            for name in names:
                if name in contracts:
                    contracts[name].read(each)
                if not each.startswith(("->", "called ")):
                    checks[name].append(each)
    for op, contract in contracts.items():
        if contract.name == op and op.removesuffix("_forward") in contracts:
            contract.name = op.removesuffix("_forward")
    return contracts
