# SPDX-License-Identifier: MIT
"""Checks and writes for ops that write into the caller's buffers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor

from ..contract import dtype_name
from ..contract_call import CLASSES


def refuse(op: str, what: str) -> None:
    """Raises a RuntimeError in the name of the op."""
    raise RuntimeError(f"detops.{op}: {what}")


def check_buffer(op: str, name: str, buffer: Tensor, like: Tensor) -> None:
    """Rejects a buffer that the op cannot safely write to.

    Its elements must not overlap in memory. Values written to a negated view would be negated.
    """
    is_taken, words = CLASSES["float"]
    if not is_taken(buffer.dtype):
        refuse(op, f"{name} must be {words}, got {dtype_name(buffer.dtype)}")
    if buffer.device != like.device:
        where = f"on the device of input ({like.device})"
        refuse(op, f"{name} must be {where}, got {buffer.device}")
    if buffer.is_neg():
        refuse(op, f"{name} must not be a view of negated numbers")
    reach = 0
    for stride, size in sorted(zip(buffer.stride(), buffer.shape, strict=True)):
        if size > 1 and stride <= reach and buffer.numel():
            refuse(op, f"{name} must have one place for each element, got {_layout(buffer)}")
        reach += (size - 1) * stride
    if buffer.requires_grad and torch.is_grad_enabled():
        refuse(op, f"{name} must not require a gradient")
    if buffer.is_inference() and not torch.is_inference_mode_enabled():
        refuse(op, f"{name} must not be a tensor of inference mode")


def _layout(x: Tensor) -> str:
    return f"{list(x.shape)} with strides {list(x.stride())}"


@contextmanager
def named(op: str) -> Iterator[None]:
    """Renames errors of the op called inside to this op."""
    try:
        yield
    except RuntimeError as error:
        name, _, what = str(error).partition(": ")
        if not name.startswith("detops."):
            raise
        raise RuntimeError(f"detops.{op}: {what}") from None


class _Places:
    """Storage positions of a tensor's elements once it has shape ``shape``, in `unit` bytes."""

    def __init__(self, x: Tensor, shape: torch.Size, unit: int) -> None:
        each = x.element_size() // unit
        self.begin = each * int(x.storage_offset())
        self.runs = [(1, each)]  # merged strides and sizes of the dimensions
        dims = zip(x.stride(), x.shape, strict=True) if x.shape == shape else [(1, shape.numel())]
        for stride, size in sorted((each * stride, size) for stride, size in dims):
            last, length = self.runs[-1]
            if stride == last * length:
                self.runs[-1] = last, length * size
            elif stride and size > 1:
                self.runs.append((stride, size))
        self.end = self.begin + 1 + sum(stride * (size - 1) for stride, size in self.runs)

    def slices(self, first: int) -> Iterator[slice]:
        """Yields slices, as long as possible, of a sequence that starts at position ``first``."""
        *others, (stride, size) = sorted(self.runs, key=lambda run: run[1])
        for steps in product(*(range(0, stride * size, stride) for stride, size in others)):
            begin = self.begin - first + sum(steps)
            yield slice(begin, begin + stride * (size - 1) + 1, stride)


def _share_memory(a: Tensor, shape: torch.Size, b: Tensor, other_shape: torch.Size) -> bool:
    """Returns whether a and b share a byte; elements of a must not overlap each other."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    if not shape.numel() or not other_shape.numel():
        return False
    unit = min(a.element_size(), b.element_size())
    of_a, of_b = _Places(a, shape, unit), _Places(b, other_shape, unit)
    if min(of_a.end, of_b.end) <= max(of_a.begin, of_b.begin):
        return False
    first = min(of_a.begin, of_b.begin)
    # A bytearray, because a tensor would have no memory where a and b have none.
    marks = bytearray(max(of_a.end, of_b.end) - first)
    ones = b"\1" * max(size for _, size in of_a.runs)  # as long as a slice
    for part in of_a.slices(first):
        marks[part] = ones
    return any(1 in marks[part] for part in of_b.slices(first))


def write(
    op: str,
    read: Mapping[str, Tensor | None],
    written: dict[str, tuple[Tensor, Tensor]],
    added: tuple[str, ...] = (),
) -> None:
    """Writes all results or none, by copying to the named buffers or adding to them.

    Buffers of a different shape, such as empty ones, are resized to the result.
    """
    places = {name: (x, x.shape) for name, x in read.items() if x is not None}
    for name, (to, source) in written.items():
        if to.shape != source.shape:
            storage = to.untyped_storage()
            end = (to.storage_offset() + source.numel()) * to.element_size()
            if to.requires_grad or (end > storage.nbytes() and not storage.resizable()):
                cause = "requires a gradient" if to.requires_grad else "has memory of a fixed size"
                shape = f"{list(source.shape)}, got {list(to.shape)}"
                refuse(op, f"{name}, which {cause}, must be {shape}")
        for other, place in places.items():
            if _share_memory(to, source.shape, *place):
                refuse(op, f"{name} must not share memory with {other}")
        places[name] = to, source.shape
    for to, source in written.values():
        if to.shape != source.shape:
            to.resize_(source.shape)
    for name, (to, source) in written.items():
        to.add_(source) if name in added else to.copy_(source)
