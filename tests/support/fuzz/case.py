"""A generated call of an op, its file format, and helpers that the whole fuzzer shares."""

import base64
import functools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import detops

# Plausible values; some values that no caller should pass; any values.
TAME, ODD, WILD = MOODS = ("tame", "odd", "wild")
ERRORS = (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError)
# Integer dtypes that expose the bits of elements, by element size.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ISAS = ("baseline", "avx2", "avx512")
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
# Under sanitizers, an impossible allocation must fail as in other builds, instead of aborting.
SANITIZER_OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=4096"


@dataclass
class Case:
    """One call: the op, its arguments by name, and how they were drawn."""

    op: str
    seed: int
    mood: str
    args: dict[str, Any]


@functools.cache
def isas() -> list[str]:
    """Returns the members of ``ISAS`` that this processor supports."""
    found = []
    for name in ISAS:
        try:
            detops._C.set_cpu_isa(name)
        except ValueError:
            continue
        found.append(name)
    detops._C.set_cpu_isa("auto")
    return found


@functools.cache
def written_by(op: str) -> list[str]:
    """Returns the arguments that an op writes."""
    formals = getattr(torch.ops.detops, op).default._schema.arguments
    return [a.name for a in formals if a.alias_info and a.alias_info.is_write]


def map_tensors(value: Any, change: Any) -> Any:
    """Returns ``value`` with each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    return [map_tensors(v, change) for v in value] if isinstance(value, list) else value


def tensors_of(value: Any) -> list[Tensor]:
    """Returns all tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [t for v in value for t in tensors_of(v)]


def bytes_of(tensor: Tensor) -> Tensor:
    """Returns all memory of a tensor's storage, as bytes that share it."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def to_json(case: Case) -> dict[str, Any]:
    """Stores a case completely, including layouts, shared memory and memory between elements."""
    storages: dict[int, int] = {}
    memory: list[str] = []

    def serialize(tensor: Tensor) -> dict[str, Any]:
        key = tensor.untyped_storage()._cdata
        if key not in storages:
            storages[key] = len(memory)
            memory.append(base64.b64encode(bytes_of(tensor).numpy().tobytes()).decode())
        return {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "size": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "negated": tensor.is_neg(),
            "memory": storages[key],
        }

    args = {name: map_tensors(value, serialize) for name, value in case.args.items()}
    return {"op": case.op, "seed": case.seed, "mood": case.mood, "args": args, "memory": memory}


def from_json(stored: dict[str, Any]) -> Case:
    """Restores a case that :func:`to_json` stored."""
    memory = [
        torch.frombuffer(bytearray(base64.b64decode(m)), dtype=torch.uint8) if m else torch.empty(0)
        for m in stored["memory"]
    ]

    def restore(value: Any) -> Any:
        if isinstance(value, list):
            return [restore(v) for v in value]
        if not isinstance(value, dict):
            return value
        tensor = torch.empty(0, dtype=getattr(torch, value["dtype"]))
        storage = memory[value["memory"]].untyped_storage()
        tensor.set_(storage, value["offset"], value["size"], value["stride"])
        return torch._neg_view(tensor) if value["negated"] else tensor

    args = {name: restore(value) for name, value in stored["args"].items()}
    return Case(stored["op"], stored["seed"], stored["mood"], args)
