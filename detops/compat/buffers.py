# SPDX-License-Identifier: MIT
"""Checks and writes for ops that write into the caller's buffers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor

from ..contract import dtype_name
from ..contract_call import DTYPE_CLASSES


def raise_error(op: str, message: str) -> None:
    """Raises a RuntimeError in the name of the op."""
    raise RuntimeError(f"detops.{op}: {message}")


def check_buffer(op: str, name: str, buffer: Tensor, like: Tensor) -> None:
    """Rejects a buffer that the op cannot safely write to.

    Its elements must not overlap in memory. Values written to a negated view would be negated.
    """
    accepts, description = DTYPE_CLASSES["float"]
    if not accepts(buffer.dtype):
        raise_error(op, f"{name} must be {description}, got {dtype_name(buffer.dtype)}")
    if buffer.device != like.device:
        where = f"on the device of input ({like.device})"
        raise_error(op, f"{name} must be {where}, got {buffer.device}")
    if buffer.is_neg():
        raise_error(op, f"{name} must not be a negated view")
    extent = 0
    for stride, size in sorted(zip(buffer.stride(), buffer.shape, strict=True)):
        if size > 1 and stride <= extent and buffer.numel():
            raise_error(op, f"{name} must not overlap itself in memory, got {_layout(buffer)}")
        extent += (size - 1) * stride
    if buffer.requires_grad and torch.is_grad_enabled():
        raise_error(op, f"{name} must not require a gradient")
    if buffer.is_inference() and not torch.is_inference_mode_enabled():
        raise_error(op, f"{name} must not be an inference tensor")


def _layout(x: Tensor) -> str:
    return f"{list(x.shape)} with strides {list(x.stride())}"


@contextmanager
def errors_as(op: str) -> Iterator[None]:
    """Renames errors of the op called inside to this op."""
    try:
        yield
    except RuntimeError as error:
        name, _, message = str(error).partition(": ")
        if not name.startswith("detops."):
            raise
        raise RuntimeError(f"detops.{op}: {message}") from None


class _Footprint:
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
    footprint_a, footprint_b = _Footprint(a, shape, unit), _Footprint(b, other_shape, unit)
    if min(footprint_a.end, footprint_b.end) <= max(footprint_a.begin, footprint_b.begin):
        return False
    first = min(footprint_a.begin, footprint_b.begin)
    # A bytearray, because a tensor would have no memory where a and b have none.
    occupied = bytearray(max(footprint_a.end, footprint_b.end) - first)
    ones = b"\1" * max(size for _, size in footprint_a.runs)  # as long as a slice
    for part in footprint_a.slices(first):
        occupied[part] = ones
    return any(1 in occupied[part] for part in footprint_b.slices(first))


def write(
    op: str,
    read: Mapping[str, Tensor | None],
    written: dict[str, tuple[Tensor, Tensor]],
    accumulated: tuple[str, ...] = (),
) -> None:
    """Writes all results or none, by copying to the named buffers or adding to them.

    Buffers of a different shape, such as empty ones, are resized to the result.
    """
    tensors = {name: (x, x.shape) for name, x in read.items() if x is not None}
    for name, (to, source) in written.items():
        if to.shape != source.shape:
            storage = to.untyped_storage()
            end = (to.storage_offset() + source.numel()) * to.element_size()
            if to.requires_grad or (end > storage.nbytes() and not storage.resizable()):
                reason = "requires a gradient" if to.requires_grad else "has memory of fixed size"
                shape = f"{list(source.shape)}, got {list(to.shape)}"
                raise_error(op, f"{name}, which {reason}, must be {shape}")
        for other, tensor_and_shape in tensors.items():
            if _share_memory(to, source.shape, *tensor_and_shape):
                raise_error(op, f"{name} must not share memory with {other}")
        tensors[name] = to, source.shape
    for to, source in written.values():
        if to.shape != source.shape:
            to.resize_(source.shape)
    for name, (to, source) in written.items():
        to.add_(source) if name in accumulated else to.copy_(source)
