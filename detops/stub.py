# SPDX-License-Identifier: MIT
"""Generates `_C.pyi` from the schemas of the ops: ``python -m detops.stub > detops/_C.pyi``."""

import re

from .registration import CONTRACTS

_HEAD = '''"""The compiled module. Every op is the object ``torch.ops.detops.<name>``.

Made by ``make stub`` from csrc/contract/*.contract.
"""

from collections.abc import Sequence

from torch import Tensor

contracts: str
cuda_version: int | None
emulated: bool

def cpu_isa() -> str: ...
def set_cpu_isa(name: str) -> None: ...
def use_arena(on: bool) -> bool: ...
def arena_size() -> tuple[int, int]: ...
def release_arena() -> None: ...
def limit_grain(most: int) -> None: ...
def shared_loops() -> int: ...
'''
_TYPES = {"Tensor": "Tensor", "int": "int", "SymInt": "int", "float": "float", "bool": "bool"}
_TYPES |= {"str": "str", "number": "float"}


def _python_type(kind: str) -> str:
    kind = re.sub(r"\([a-z]!?\)", "", kind)  # annotations of writes and aliases
    if kind.endswith("?"):
        return f"{_python_type(kind[:-1])} | None"
    if match := re.fullmatch(r"(\w+)\[\d*\]", kind):
        return f"Sequence[{_TYPES[match[1]]}]"
    return _TYPES[kind]


def _python_default(text: str, kind: str) -> str:
    if "[" in kind and "[" not in text:  # one default for all elements
        return f"({', '.join([text] * int(re.findall(r'[0-9]+', kind)[0]))})"
    return text.replace("'", '"')


def signature(schema: str) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Splits a schema into arguments (type, name, default) and results (type, name)."""
    formals, result = re.fullmatch(r"\w+\((.*)\) -> (.*)", schema).groups()  # type: ignore[union-attr]
    arguments = []
    for formal in re.split(r", (?![^\[]*\])", formals):
        kind, _, rest = formal.partition(" ")
        name, _, default = rest.partition("=")
        arguments.append((kind, name, default))
    result = result[1:-1] if result.startswith("(") else result
    parts = [part.partition(" ") for part in result.split(", ") if part]
    return arguments, [(kind, name) for kind, _, name in parts]


def stub() -> str:
    """Returns the text of the stub."""
    lines = [_HEAD]
    for contract in CONTRACTS.values():
        arguments, results = signature(contract.schema)
        parameters = []
        for kind, name, default in arguments:
            text = f"{name}: {_python_type(kind)}"
            parameters.append(f"{text} = {_python_default(default, kind)}" if default else text)
        kinds = [kind for kind, _ in results]
        if not kinds:
            returned = "None"
        elif contract.returns > 1:
            returned = f"tuple[{', '.join(map(_python_type, kinds))}]"
        elif kinds[0].endswith("[]"):
            returned = f"list[{_TYPES[kinds[0][:-2]]}]"
        else:
            returned = _python_type(kinds[0])
        body = "".join(f"    {parameter},\n" for parameter in parameters)
        lines.append(f"def {contract.op}(\n{body}) -> {returned}: ...\n")
    return "".join(lines)


if __name__ == "__main__":
    print(stub(), end="")
