"""RoIAlign on a feature pyramid."""

import math
from typing import Any, NamedTuple

import torch.fx
from torch import Tensor

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import (
    Floats,
    Function,
    Pair,
    Sizes,
    Tensors,
    as_pair,
    as_rois,
    fold,
    fold_boxes,
    in_format,
    memory_format,
    unfold,
)


class Pooling(NamedTuple):
    """The arguments that the forward and backward ops share, in their order."""

    spatial_scales: list[float]
    height: int
    width: int
    sampling_ratio: int
    aligned: bool
    canonical_scale: float
    canonical_level: int


class MultiScaleRoIAlignFunction(Function):
    """Autograd function, linear in the feature maps. Boxes get no gradient."""

    linear_in = (slice(2, None),)

    @staticmethod
    def forward(boxes: Tensor, pooling: Pooling, *inputs: Tensor) -> Tensor:
        """See :func:`multiscale_roi_align`."""
        return _C.multiscale_roi_align_forward(inputs, boxes, *pooling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes, and the sizes and layout of the feature maps."""
        boxes, ctx.pooling, *maps = inputs
        ctx.save_for_backward(boxes)
        ctx.sizes = [tuple(m.shape) for m in maps]
        ctx.format = memory_format(maps[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Applies the transpose of the forward pass."""
        (boxes,) = ctx.saved_tensors
        grads = MultiScaleRoIAlignBackwardFunction.run(
            in_format(grad, ctx.format), boxes, ctx.pooling, ctx.sizes
        )
        return None, None, *grads

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, boxes: Tensor, pooling: Pooling, *inputs: Tensor
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch, dims = info.batch_size, in_dims[2:]
        folded = [fold(m, d, batch) for m, d in zip(inputs, dims, strict=True)]
        boxes = fold_boxes(boxes, in_dims[0], batch, folded[0].size(0) // batch)
        return unfold(MultiScaleRoIAlignFunction.run(boxes, pooling, *folded), batch), 0


class MultiScaleRoIAlignBackwardFunction(Function):
    """The transpose of :class:`MultiScaleRoIAlignFunction`."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(
        grad: Tensor, boxes: Tensor, pooling: Pooling, sizes: list[tuple[int, int, int, int]]
    ) -> tuple[Tensor, ...]:
        """Scatters ``grad`` into one feature map per level."""
        batch, channels = sizes[0][:2]
        maps = _C.multiscale_roi_align_backward(
            grad,
            boxes,
            pooling.spatial_scales,
            pooling.height,
            pooling.width,
            batch,
            channels,
            [size[2] for size in sizes],
            [size[3] for size in sizes],
            pooling.sampling_ratio,
            pooling.aligned,
            pooling.canonical_scale,
            pooling.canonical_level,
        )
        return tuple(maps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        """Keeps the boxes."""
        _, boxes, ctx.pooling, _ = inputs
        ctx.save_for_backward(boxes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Runs the forward pass on the gradients (double backward)."""
        (boxes,) = ctx.saved_tensors
        return MultiScaleRoIAlignFunction.run(boxes, ctx.pooling, *grads), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, grad: Tensor, boxes: Tensor, pooling: Pooling, sizes: list
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Makes one call over the folded images."""
        batch, images = info.batch_size, sizes[0][0]
        boxes = fold_boxes(boxes, in_dims[1], batch, images)
        grad = fold(grad, in_dims[0], batch)
        sizes = [(batch * images, *size[1:]) for size in sizes]
        maps = MultiScaleRoIAlignBackwardFunction.run(grad, boxes, pooling, sizes)
        return tuple(unfold(m, batch) for m in maps), (0,) * len(maps)


_multiscale_roi_align = derivative(
    "multiscale_roi_align",
    lambda inputs, boxes, *pooling: MultiScaleRoIAlignFunction.run(
        boxes, Pooling(*pooling), *inputs
    ),
    raw=torch.ops.detops.multiscale_roi_align_forward.default._op,
)


def multiscale_roi_align(
    inputs: Tensors,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scales: Floats,
    sampling_ratio: int = -1,
    aligned: bool = False,
    canonical_scale: float = 224,
    canonical_level: int = 4,
) -> Tensor:
    """Pools each box from the level of a feature pyramid that suits its size, in one kernel.

    The level is that of "Feature Pyramid Networks" (Lin et al., 2017), equation 1:
    ``floor(canonical_level + log2(sqrt(area) / canonical_scale) + 1e-6)``, clamped to the given
    levels.

    Args:
        inputs: one ``[N, C, H_l, W_l]`` per level, finest first, all in one layout and dtype.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scales: per level, pixels of the feature map per pixel of the boxes, a power of two.
        sampling_ratio: see :func:`roi_align`.
        aligned: see :func:`roi_align`.
        canonical_scale: side in pixels of a box that belongs to ``canonical_level``.
        canonical_level: level of such a box, as the exponent of the level's stride, 2^level.

    Returns:
        ``[K, C, height, width]``.

    Raises:
        RuntimeError: as in :func:`roi_align`; also feature maps that differ in N, C or dtype, and
            different numbers of scales and feature maps.

    Example:
        >>> maps = [torch.full((1, 1, 64 >> k, 64 >> k), k + 2.0) for k in range(3)]
        >>> boxes = [torch.tensor([[0.0, 0, 20, 20], [0, 0, 200, 200], [0, 0, 250, 250]])]
        >>> pooled = multiscale_roi_align(maps, boxes, 7, [1 / 4, 1 / 8, 1 / 16])
        >>> pooled.mean((1, 2, 3))  # the levels that they came from
        tensor([2., 3., 4.])
    """
    height, width = as_pair(output_size)
    return _multiscale_roi_align(
        inputs,
        as_rois("multiscale_roi_align", boxes),
        spatial_scales,
        height,
        width,
        sampling_ratio,
        aligned,
        canonical_scale,
        canonical_level,
    )


@torch.fx.wrap
def _pool_named_maps(
    x: dict[str, Tensor],
    boxes: list[Tensor],
    image_shapes: list[tuple[int, int]],
    names: list[str],
    output_size: tuple[int, int],
    sampling_ratio: int,
    canonical_scale: int,
    canonical_level: int,
) -> Tensor:
    maps: list[Tensor] = []
    for name in names:
        if name in x:
            maps.append(x[name])  # noqa: PERF401, TorchScript has no comprehension with an if
    if len(maps) == 0:
        got = list(x.keys())
        raise ValueError(f"detops.MultiScaleRoIAlign: x must contain one of {names}, got {got}")
    return multiscale_roi_align(
        maps,
        boxes,
        output_size,
        infer_scales(maps, image_shapes),
        sampling_ratio,
        canonical_scale=float(canonical_scale),
        canonical_level=canonical_level,
    )


class MultiScaleRoIAlign(Module):
    """Drop-in replacement for the torchvision module; see :func:`multiscale_roi_align`.

    Every call infers the scale of each level from its feature map and the largest image.

    Example:
        >>> maps = {name: torch.randn(1, 16, 64 >> k, 64 >> k) for k, name in enumerate("abc")}
        >>> pool = MultiScaleRoIAlign(["a", "b", "c"], output_size=7, sampling_ratio=2)
        >>> pool(maps, [torch.tensor([[8.0, 8, 88, 64]])], [(256, 256)]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(
        self,
        featmap_names: list[str],
        output_size: Pair,
        sampling_ratio: int,
        *,
        canonical_scale: int = 224,
        canonical_level: int = 4,
    ) -> None:
        super().__init__()
        self.featmap_names = featmap_names
        self.output_size = as_pair(output_size)  # type: ignore[arg-type]
        self.sampling_ratio = sampling_ratio
        self.canonical_scale = canonical_scale
        self.canonical_level = canonical_level

    def forward(
        self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> Tensor:
        """Pools boxes from named feature maps.

        Args:
            x: feature maps by name; those in ``featmap_names`` are used, finest first.
            boxes: ``[L, 4]`` for each image, in pixels of the image.
            image_shapes: ``(height, width)`` of each image.

        Returns:
            ``[K, C, height, width]``.

        Raises:
            ValueError: ``x`` has none of the feature maps, or ``image_shapes`` is empty.
        """
        return _pool_named_maps(
            x,
            boxes,
            image_shapes,
            self.featmap_names,
            self.output_size,
            self.sampling_ratio,
            self.canonical_scale,
            self.canonical_level,
        )

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return (
            f"featmap_names={self.featmap_names}, output_size={self.output_size}, "
            f"sampling_ratio={self.sampling_ratio}"
        )


def infer_scales(maps: Tensors, image_shapes: Sizes) -> list[float]:
    """Returns the scale of each feature map relative to the largest image."""
    if len(image_shapes) == 0:
        raise ValueError(
            "detops.MultiScaleRoIAlign: image_shapes must contain a size for each image, got "
            "an empty list"
        )
    height, width = image_shapes[0]
    for shape in image_shapes:
        height, width = max(height, shape[0]), max(width, shape[1])
    return [power_of_two_scale(m.size(-2), m.size(-1), height, width) for m in maps]


def power_of_two_scale(map_height: int, map_width: int, height: int, width: int) -> float:
    """Returns the power of two nearest to the feature map's scale, along the image's longer side.

    Rounding by strides and padding distorts the longer side less.
    """
    scale = map_height / height if height >= width else map_width / width
    return 2.0 ** round(math.log(scale) / math.log(2.0))  # TorchScript has no log2
