# SPDX-License-Identifier: MIT
"""Generates `include/detops/ops.h` from the schemas of the ops.

Run ``python -m detops.header > detops/include/detops/ops.h``. The header contains the ops with
kernels. Composite ops are written in Python and not available in C++.
"""

import re

from .contract import Contract
from .registration import CONTRACTS
from .stub import signature

_HEAD = """// SPDX-License-Identifier: MIT
#pragma once

// The ops that have kernels, as functions with types; what they take and give is what the functions
// of the same names do in Python, and a refused call is a std::runtime_error with the same message.
// They have no derivative of their own: <op>_backward gives it.
//
// Made by `make header` from csrc/contract/*.contract.
#include "call.h"

namespace detops {
"""
_TYPES = {"int": "int64_t", "SymInt": "int64_t", "float": "double", "bool": "bool"}
_BY_REFERENCE = {"Tensor": "Tensor", "str": "std::string"}


def _type(kind: str) -> str:
    if match := re.fullmatch(r"(\w+)\[(\d*)\]", kind):
        each = (_TYPES | _BY_REFERENCE)[match[1]]
        return f"std::array<{each}, {match[2]}>" if match[2] else f"std::vector<{each}>"
    if kind.endswith("?"):
        return f"std::optional<{_type(kind[:-1])}>"
    return (_TYPES | _BY_REFERENCE)[kind]


def _parameter(kind: str, name: str, default: str) -> str:
    text = _type(kind)
    text = f"{text} {name}" if kind in _TYPES else f"const {text}& {name}"
    if not default:
        return text
    if default == "None":
        return f"{text} = std::nullopt"
    if match := re.fullmatch(r"\w+\[(\d+)\]", kind):  # one default for all elements
        return f"{text} = {{{', '.join([default] * int(match[1]))}}}"
    default = default.replace("'", '"').replace("[", "{").replace("]", "}")
    return f"{text} = {default.lower() if kind == 'bool' else default}"


def _function(contract: Contract) -> str:
    arguments, results = signature(contract.schema)
    kinds = [_type(kind) for kind, _ in results]
    returned = kinds[0] if len(kinds) == 1 else f"std::tuple<{', '.join(kinds)}>"
    names = [name for _, name in results if name]
    comment = f"// Gives {', '.join(names)}.\n" if names else ""
    parameters = ", ".join(_parameter(*argument) for argument in arguments)
    call = ", ".join([f'"detops::{contract.op}"', *(name for _, name, _ in arguments)])
    return (
        f"\n{comment}inline {returned} {contract.op}({parameters}) {{\n"
        f"  return detail::call<{returned}>({call});\n}}\n"
    )


def header() -> str:
    """Returns the text of the header, before clang-format breaks its lines."""
    kernels = [contract for contract in CONTRACTS.values() if contract.outputs]
    return _HEAD + "".join(map(_function, kernels)) + "\n}  // namespace detops\n"


if __name__ == "__main__":
    print(header(), end="")
