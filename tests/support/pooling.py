"""Descriptions of calls of pooling ops, for the contract tests of these ops."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pool_inputs import LAYOUTS
from torch import Generator, Tensor, nn

Tensors = dict[str, Tensor]
SCALE = 0.5  # pixels of the feature map per pixel of the boxes
CHANNELS = 4
SIZE = (9, 11)


@dataclass(frozen=True, eq=False)
class Pooling:
    """A function of feature maps ``[N, C, H, W]``, RoIs ``[K, columns]`` and further tensors.

    The function, the module and the oracle get the same options. Names of feature maps begin with
    "input".
    """

    name: str  # the op, then after a comma what distinguishes this call
    function: Callable[..., Tensor]  # of input, boxes, further tensors and the options
    module: Callable[..., nn.Module] | None  # of the options
    oracle: Callable[..., Tensor]  # like the function, slowly, on float64 tensors
    options: dict[str, Any]
    make: Callable[..., Tensors]  # see `upright`
    columns: int = 5
    gradients: tuple[str, ...] = ("input",)  # the tensors with a first derivative
    second_derivatives: bool = True
    maximum: bool = False  # an element comes from one sample, and NaN samples do not count
    max_sampling_ratio: int | None = None
    tolerance: float = 2e-5  # largest error of float32 with feature maps of about 10 pixels
    gradient_tolerance: float = 3e-5  # and of its gradients
    reordered_sums: tuple[str, ...] = ()  # sums that half precision may compute in another order
    exceptions: dict[str, str] = field(default_factory=dict)  # from promise to reason

    @property
    def op(self) -> str:
        return self.name.split(",")[0]

    def __call__(self, tensors: Tensors) -> Tensor:
        return self.function(*tensors.values(), **self.options)

    def with_options(self, **options: Any) -> "Pooling":
        """Returns the same call of the op with some other options."""
        return replace(self, options=self.options | options)

    def tensors(
        self,
        images: int = 2,
        channels: int = CHANNELS,
        count: int = 8,
        size: tuple[int, int] = SIZE,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        layout: torch.memory_format = LAYOUTS[0],
    ) -> Tensors:
        """Returns the arguments by name. All except feature maps are at least float32."""
        generator = torch.Generator().manual_seed(0)
        tensors = self.make(self.options, images, channels, count, size, generator)
        return self.cast(tensors, dtype, device, layout)

    def cast(
        self,
        tensors: Tensors,
        dtype: torch.dtype,
        device: str = "cpu",
        layout: torch.memory_format = LAYOUTS[0],
    ) -> Tensors:
        """Returns leaves with the same values, feature maps in the given dtype and layout."""
        leaves = {}
        for name, x in tensors.items():
            wide = torch.promote_types(dtype, torch.float32)
            x = x.detach().to(device, dtype if name.startswith("input") else wide, copy=True)
            x = x.contiguous(memory_format=layout) if name.startswith("input") else x
            leaves[name] = x.requires_grad_(name in self.gradients)
        return leaves

    def with_gradients(self, tensors: Tensors, grad: Tensor | None = None) -> list[Tensor]:
        """Returns the pooled RoIs and all gradients, for the given gradient or a random one."""
        pooled = self(tensors)
        if grad is None:
            grad = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
        leaves = [tensors[name] for name in self.gradients]
        return [pooled.detach(), *torch.autograd.grad(pooled, leaves, grad.to(pooled))]


def upright_rois(images: int, count: int, size: tuple[int, int], generator: Generator) -> Tensor:
    """Returns RoIs as (batch index, corners) that reach beyond a feature map of the given size.

    The first begins and ends on whole pixels, the second is below a pixel, the third is inverted.
    """
    extent = torch.tensor([size[1], size[0]]) / SCALE
    low = (torch.rand(count, 2, generator=generator) * 1.2 - 0.3) * extent
    side = torch.rand(count, 2, generator=generator) * 0.7 * extent + 0.5
    low[:1], side[:1] = 4, 12
    side[1:2] = 0.5
    side[2:3] *= -1
    index = torch.arange(count).view(-1, 1) % max(images, 1)
    return torch.cat([index, low, low + side], 1)


def upright(
    options: dict[str, Any],
    images: int,
    channels: int,
    count: int,
    size: tuple[int, int],
    generator: Generator,
) -> Tensors:
    """Returns a feature map and upright RoIs."""
    boxes = upright_rois(images, count, size, generator)
    return {"input": torch.randn(images, channels, *size, generator=generator), "boxes": boxes}


def rotated(options, images, channels, count, size, generator) -> Tensors:
    """Returns a feature map and RoIs at any angle."""
    tensors = upright(options, images, channels, count, size, generator)
    index, low, high = tensors["boxes"].split([1, 2, 2], 1)
    angle = torch.rand(count, 1, generator=generator) * 800 - 400
    return tensors | {"boxes": torch.cat([index, (low + high) / 2, high - low, angle], 1)}


def first_case_per_op(cases: list[Pooling]) -> list[Pooling]:
    """Returns the first call of each op."""
    return list({case.op: case for case in reversed(cases)}.values())
