"""Anchors of the region proposal network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..convention import Convention


def per_anchor(x: Tensor, values: int) -> Tensor:
    """Rearranges feature maps ``[N, A * values, H, W]`` to float32 ``[N, H * W * A, values]``.

    The result is in the order of the anchors. ``reshape`` is avoided: if sizes are symbolic, export
    takes seconds for each size that ``reshape`` has to infer.
    """
    return x.permute(0, 2, 3, 1).unflatten(3, (-1, values)).flatten(1, 3).float()


class CellAnchors(nn.Module):
    """Anchors of one cell per level, in buffers named 0, 1, 2..."""

    def __init__(self, anchors: Sequence[Tensor]) -> None:
        super().__init__()
        for i, a in enumerate(anchors):
            self.register_buffer(str(i), a)

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, level: int) -> Tensor:
        return self.get_buffer(str(level))


class AnchorGenerator(nn.Module):
    """Generates anchors at every position of a feature pyramid.

    "Faster R-CNN" (Ren et al., 2015), section 3.1.1.

    Args:
        sizes: per level, the square roots of the anchor areas, in pixels of the image.
        aspect_ratios: height over width, the same on every level.
        strides: per level, pixels of the image per position.
        straddle_thresh: in training, anchors that extend more pixels than this beyond the image are
            ignored; negative keeps all.
        stride_from_size: the stride of each coarser level is the padded image size over the size of
            its feature map, rounded down: less than the nominal stride where a size was odd.
        convention: determines the sides and the order of a cell's anchors.
    """

    def __init__(
        self,
        sizes: Sequence[Sequence[float]],
        aspect_ratios: Sequence[float],
        strides: Sequence[int],
        straddle_thresh: int = 0,
        stride_from_size: bool = False,
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        if len(sizes) != len(strides):
            raise ValueError(
                f"AnchorGenerator: expected one tuple of sizes per stride ({len(strides)}), "
                f"got {len(sizes)}"
            )
        self.cell_anchors = CellAnchors([convention.cell_anchors(s, aspect_ratios) for s in sizes])
        self.strides = tuple(strides)
        self.straddle_thresh = straddle_thresh
        self.stride_from_size = stride_from_size

    def num_anchors(self) -> list[int]:
        """Returns the number of anchors per position, for each level."""
        return [self.cell_anchors[i].size(0) for i in range(len(self.cell_anchors))]

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Returns anchors per level, ``[H * W * A, 4]``: row by row, position by position.

        Raises:
            ValueError: the numbers of levels and of strides differ.
        """
        if len(features) != len(self.strides):
            raise ValueError(
                f"AnchorGenerator: expected {len(self.strides)} feature levels, got {len(features)}"
            )
        sizes = [(f.shape[-2], f.shape[-1]) for f in features]
        return [
            self._level(i, size, self._strides(i, size, sizes[0])) for i, size in enumerate(sizes)
        ]

    def _strides(
        self, level: int, size: tuple[int, int], finest: tuple[int, int]
    ) -> tuple[int, int]:
        if not self.stride_from_size:
            return self.strides[level], self.strides[level]
        return self.strides[0] * finest[0] // size[0], self.strides[0] * finest[1] // size[1]

    def _level(self, level: int, size: tuple[int, int], strides: tuple[int, int]) -> Tensor:
        cell = self.cell_anchors[level]
        y = torch.arange(size[0], device=cell.device) * strides[0]
        x = torch.arange(size[1], device=cell.device) * strides[1]
        y, x = torch.meshgrid(y, x, indexing="ij")
        shifts = torch.stack([x, y, x, y], dim=-1).view(-1, 1, 4)
        return (shifts + cell).view(-1, 4)

    def visible(self, anchors: Tensor, image_size: tuple[int, int]) -> Tensor:
        """Returns which anchors are used on a training image of (height, width): bool ``[N]``."""
        if self.straddle_thresh < 0:
            return torch.ones(anchors.size(0), dtype=torch.bool, device=anchors.device)
        height, width = image_size
        reach = self.straddle_thresh
        inside = (anchors[:, :2] >= -reach).all(dim=1)
        return inside & (anchors[:, 2] < width + reach) & (anchors[:, 3] < height + reach)
