"""Draws the contents of tensors and their memory layouts."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detops.contract_call import DISCRETE, DTYPE_CLASSES
from detops.contract_call import FLOAT as FLOATS

from .case import TAME, WILD, bytes_of

OTHERS = (torch.complex64, torch.float8_e5m2, torch.bool, torch.uint16)
# Dtypes to draw from, by class.
DTYPES_BY_CLASS = {
    name: [dtype for dtype in (*FLOATS, *DISCRETE, torch.complex64) if accepts(dtype)]
    for name, (accepts, _) in DTYPE_CLASSES.items()
}
TINY = (1e-40, 5e-324, 2.0**-149, -1e-42, 6e-8)
HUGE = (1e30, -1e30, 3e38, 1e300, 65504.0, 2.0**31, 2.0**63, 1e9, -1e9, 16777217.0)
EXTREMES = (math.nan, math.inf, -math.inf, 0.0, -0.0, *TINY, *HUGE)
EXTREME_INTEGERS = (-1, 0, 1, 127, 255, -128, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
BOXES = {"boxes", "boxes1", "boxes2", "anchors", "bbox", "polygons"}


class Values:
    """Draws the elements of the tensors of one case."""

    def __init__(self, op: str, rng: random.Random, mood: str, sizes: Any) -> None:
        self.op, self.rng, self.mood, self.sizes = op, rng, mood, sizes
        self.generator = torch.Generator().manual_seed(rng.getrandbits(32))
        self.extent = rng.choice((1.0, 8.0, 8.0, 20.0, 100.0, 1000.0))
        self.is_integral = rng.random() < 0.3  # integers touch and tie
        # Extent of all boxes over the largest side.
        self.extent_ratio = rng.choice((2, 2, 2, 20, 200))

    def uniform(self, *shape: int) -> Tensor:
        """Returns numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, shape: list[int]) -> Tensor:
        """Returns integers in [low, high], with an occasional outlier."""
        drawn = torch.randint(low, max(low, high) + 1, shape, generator=self.generator)
        if self.mood == WILD and drawn.numel() and self.rng.random() < 0.3:
            at = self.rng.randrange(drawn.numel())
            drawn.view(-1)[at] = self.rng.choice(EXTREME_INTEGERS)
        return drawn

    def boxes(self, name: str, shape: list[int]) -> Tensor:
        """Returns corners, RoIs, rotated boxes, rotated RoIs or quadrilaterals, by column count."""
        rows, columns = shape[:-1], shape[-1]
        low = self.extent * self.uniform(*rows, 2)
        side = self.uniform(*rows, 2) * self.extent / self.extent_ratio
        if self.is_integral:
            low, side = low.floor(), side.ceil()
        high = low + side
        if columns == 8:
            corners = torch.cat([low, high], -1)[..., [0, 1, 2, 1, 2, 3, 0, 3]]
            jitter = self.uniform(*rows, 8) * side.amin(-1, keepdim=True) / 4
            return corners if self.is_integral else corners + jitter  # convex
        is_rotated = "rotated" in self.op and columns != 4
        angle = self.rng.choice((1.0, 90.0, 720.0)) * (self.uniform(*rows, 1) - 0.5)
        angle = (angle / 45).round() * 45 if self.is_integral else angle
        box = torch.cat([low, side, angle] if is_rotated else [low, high], -1)
        if columns == box.shape[-1] + 1:
            images = int(self.sizes.get("batch_size", self.sizes.get("N", 1)) or 1)
            image = self.integers(0, min(images, 1 << 30) - 1, [*rows, 1])
            return torch.cat([image.double(), box], -1)
        return box if columns == box.shape[-1] else self.uniform(*shape) * self.extent

    def discrete(self, name: str, shape: list[int]) -> Tensor:
        """Returns labels, positions and counts, each within its range."""
        get = self.sizes.get
        limits = {
            "models": len(get("weights") or [0]) - 1,
            "num_objects": get("M", 0),
            "idx1": get("M", 0) - 1,
            "idx2": get("N", 0) - 1,
            "targets": get("C", get("num_classes", 1)),
            "argmax": get("H", get("height", 4)) * get("W", get("width", 4)) - 1,
            "indices": get("orientations", 1) * get("H", 1) * get("W", 1),
        }
        areas = torch.tensor(get("areas", [])).view(-1, 2)
        if name == "spatial_shapes" and list(areas.shape) == shape:
            return areas
        if name == "level_start_index" and [len(areas)] == shape:
            return areas.prod(1).cumsum(0) - areas.prod(1)
        low = {"indices": 1, "idxs": -2, "labels": -2}.get(name, 0)
        return self.integers(low, max(low, min(limits.get(name, 3), 1 << 40)), shape)

    def real(self, name: str, shape: list[int]) -> Tensor:
        """Returns real numbers of a magnitude that suits their name."""
        if name in BOXES and shape and shape[-1] in (4, 5, 6, 8):
            found = self.boxes(name, shape)
            if found.dim() == 2 and len(found) > 1 and self.rng.random() < 0.3:
                found[len(found) // 2 :] = found[: len(found) - len(found) // 2].clone()
            return found
        if name in ("points", "pointsets") and "sample" not in self.op:
            return self.uniform(*shape) * self.extent
        found = self.uniform(*shape)
        if name == "scores" or "masks" in name or name in ("mask", "attention_weights", "gates"):
            return (found * 4).floor() / 4 if self.is_integral else found
        if name == "targets":
            return found.round()
        if name in ("argmax_y", "argmax_x", "sampling_locations", "points"):
            return found * 1.4 - 0.2 if "arg" not in name else found * 9 - 1
        return (found * 8 - 4).round() if self.is_integral else found * 2 - 1

    def tensor(self, name: str, shape: list[int], dtype: torch.dtype) -> Tensor:
        """Returns a dense tensor."""
        floating = dtype.is_floating_point or dtype.is_complex
        if floating or name in BOXES or "mask" in name:
            found = self.real(name, shape)
        else:
            found = self.discrete(name, shape)
        if dtype == torch.bool and found.is_floating_point():
            found = found > 0.5
        if self.mood != TAME and floating and found.numel():
            rois = name in BOXES and shape[-1:] == [6 if "rotated" in self.op else 5]
            keep_image = rois and self.rng.random() < 0.8  # otherwise the op rejects it
            self.corrupt(found[..., 1:] if keep_image else found)
        return found.to(dtype)

    def corrupt(self, tensor: Tensor) -> None:
        """Inserts strange values in place."""
        choice = self.rng.random()
        if choice < 0.4:
            for _ in range(self.rng.choice((1, 1, 2, 5))):
                at = tuple(self.rng.randrange(n) for n in tensor.shape)
                tensor[at] = self.rng.choice(EXTREMES)
        elif choice < 0.5:
            tensor.fill_(self.rng.choice(EXTREMES))
        elif choice < 0.6:
            tensor.mul_(self.rng.choice((-1.0, 1e3, 1e9, 1e-40, 1e30)))
        elif choice < 0.7 and tensor.dim():
            tensor.copy_(tensor.flip(-1))  # inverted boxes


def permuted(x: Tensor, rng: random.Random) -> Tensor:
    """Permutes the dimensions in memory."""
    order = rng.sample(range(x.dim()), x.dim())
    back = sorted(range(x.dim()), key=order.__getitem__)
    return x.permute(order).contiguous().permute(back)


def strided(x: Tensor, rng: random.Random) -> Tensor:
    """Spaces the elements out in memory, with other memory before and after them."""
    if not x.numel():  # may be 2^40 in another dimension
        return x
    buffer = x.new_zeros([n + 2 for n in x.shape[:-1]] + [2 * n + 3 for n in x.shape[-1:]])
    part = buffer[(slice(1, -1),) * (x.dim() - 1) + (slice(1, -2, 2),)] if x.dim() else buffer
    return part.copy_(x)


def inside_buffer(x: Tensor, rng: random.Random) -> Tensor:
    """Places the dense elements inside a larger buffer."""
    offset = rng.choice((1, 3, 16))
    buffer = x.new_zeros(x.numel() + offset + 5)
    return buffer[offset : offset + x.numel()].view(x.shape).copy_(x)


def expanded(x: Tensor, rng: random.Random) -> Tensor:
    """Makes all elements along one dimension the same element."""
    dims = [d for d in range(x.dim() - 1) if x.shape[d] > 1]
    if not dims:
        return x
    d = rng.choice(dims)
    return x.narrow(d, 0, 1).contiguous().expand(x.shape)


def unused_strides(x: Tensor, rng: random.Random) -> Tensor:
    """Gives dimensions of one element strides that are never used."""
    stride = [rng.choice((0, 1, 7, 2**40)) if n < 2 else s for n, s in
              zip(x.shape, x.stride(), strict=True)]  # fmt: skip
    return x.as_strided(x.shape, stride)


def overlapping(x: Tensor, rng: random.Random) -> Tensor:
    """Starts each row one element after the previous one."""
    return x.as_strided(x.shape, [1] * x.dim()) if x.numel() else x


def channels_last(x: Tensor, rng: random.Random) -> Tensor:
    """Converts 4 dimensions to the channels_last layout."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def negated(x: Tensor, rng: random.Random) -> Tensor:
    """Returns a view that negates the values in its memory."""
    return torch._neg_view(x.neg()) if x.dtype in FLOATS else x


Layout = Callable[[Tensor, random.Random], Tensor]
LAYOUTS: tuple[Layout, ...] = (
    *(permuted, strided, strided, inside_buffer, expanded, unused_strides),
    *(channels_last, channels_last, negated),
)


def random_layout(x: Tensor, rng: random.Random, mood: str) -> Tensor:
    """Returns the same values in a random layout; except for ``TAME``, they may also repeat."""
    if rng.random() < 0.4:
        return x
    return rng.choice(LAYOUTS if mood == TAME else (*LAYOUTS, overlapping))(x, rng)


def fill_between(tensors: list[Tensor], byte: int) -> None:
    """Overwrites the tensors' memory outside their elements."""
    copies = []
    for x in tensors:
        is_full = x.untyped_storage().nbytes() == x.numel() * x.element_size()
        if x.is_neg() or is_full and torch.ops.aten.is_non_overlapping_and_dense(x):
            continue
        for d in range(x.dim()):
            x = x.narrow(d, 0, 1) if x.stride(d) == 0 and x.shape[d] > 1 else x
        copies.append((x, x.clone()))
    for x, _ in copies:
        bytes_of(x).fill_(byte)
    for x, values in copies:
        x.copy_(values)
