"""Conventions for boxes, RoI pooling and resizing: detops' own and those of other packages."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ..config import ConfigError
from ..ops import (
    clip_boxes_to_image,
    multiscale_roi_align,
    paste_masks_in_image,
    remove_small_boxes,
    roi_align,
)
from ..ops._shared import as_rois
from .paste import paste_masks
from .symbolic import exporting, statically_true, sym_max, sym_min


class Convention:
    """The convention of detops and torchvision: a box ends before its second corner.

    Boxes inside a detector always have this form. Other conventions override the steps that pool,
    clip or paste by them.
    """

    # Minimum side in pixels: drops what clipping leaves of a box outside the image.
    min_side = 0.01
    # See :func:`detops.roi_align`.
    aligned = False
    # Factor on the canonical scale of the levels.
    scale_factor = 1.0

    def cell_anchors(self, sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
        """Returns anchors centred on (0, 0), in whole pixels, ordered by ratio, then by size.

        Args:
            sizes: square roots of the areas, in pixels.
            aspect_ratios: height over width.

        Returns:
            ``[len(aspect_ratios) * len(sizes), 4]`` as (x1, y1, x2, y2).
        """
        size = torch.tensor(sizes, dtype=torch.float32)
        root = torch.tensor(aspect_ratios, dtype=torch.float32).sqrt()
        width = (size / root[:, None]).flatten()
        height = (size * root[:, None]).flatten()
        return (torch.stack([-width, -height, width, height], dim=1) / 2).round()

    def select_large(self, boxes: Tensor, side: float) -> Tensor:
        """Returns the indices of boxes ``[N, 4]`` with both sides at least ``side`` pixels.

        Boxes with NaN are excluded.
        """
        return remove_small_boxes(boxes, side)

    def clip(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Clips boxes ``[..., 4]`` to an image of (height, width)."""
        return clip_boxes_to_image(boxes, size)

    def clip_dense(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Clips the boxes of a RetinaNet, before NMS."""
        return self.clip(boxes, size)

    def corners(self, boxes: Tensor) -> Tensor:
        """Converts boxes ``[N, 4]`` to the corners that masks and keypoints are placed between."""
        return boxes

    def boxes(self, corners: Tensor) -> Tensor:
        """Inverts :meth:`corners`."""
        return corners

    def clip_to_image(self, corners: Tensor, size: tuple[int, int]) -> Tensor:
        """Clips corners that were scaled from the batch to an image of (height, width)."""
        return clip_boxes_to_image(corners, size)

    def select_visible(self, detection: dict[str, Tensor]) -> dict[str, Tensor]:
        """Selects the detections to return, with boxes from :meth:`clip_to_image`: all of them."""
        return detection

    def paste(
        self, masks: Tensor, corners: Tensor, size: tuple[int, int], threshold: float
    ) -> Tensor:
        """Pastes masks ``[K, 1, M, M]`` into an image of (height, width).

        See ``modeling/paste.py``.
        """
        return paste_masks(masks, corners, size, threshold)

    def pool(
        self,
        features: Sequence[Tensor],
        boxes: Sequence[Tensor],
        output_size: int,
        scales: Sequence[float],
        sampling_ratio: int,
        canonical_scale: float,
        canonical_level: int,
    ) -> Tensor:
        """Pools boxes; see :func:`detops.multiscale_roi_align`."""
        return multiscale_roi_align(
            features,
            list(boxes),
            output_size,
            scales,
            sampling_ratio,
            aligned=self.aligned,
            canonical_scale=canonical_scale * self.scale_factor,
            canonical_level=canonical_level,
        )

    def resize(
        self, image: Tensor, normalise: Callable[[Tensor], Tensor], min_size: int, max_size: int
    ) -> Tensor:
        """Normalises and resizes an image ``[3, h, w]``, RGB in 0..1.

        The shorter side gets ``min_size`` pixels, the longer side at most ``max_size``. If
        ``min_size`` is 0, the size is kept.
        """
        image = normalise(image)
        height, width = image.shape[1:]
        if min_size == 0:
            return image
        scale = sym_min(min_size / sym_min(height, width), max_size / sym_max(height, width))
        size = (sym_max(1, math.trunc(height * scale)), sym_max(1, math.trunc(width * scale)))
        if not exporting() and size == (height, width):
            return image
        return F.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]


class ResizedByPillow(Convention):
    """Base of conventions that resize images with Pillow: in 8 bits, with antialiasing."""

    def _resized_shape(
        self, height: int, width: int, min_size: int, max_size: int
    ) -> tuple[int, int]:
        """Returns (height, width): the shorter ``min_size``, the longer at most ``max_size``."""
        raise NotImplementedError

    def resize(
        self, image: Tensor, normalise: Callable[[Tensor], Tensor], min_size: int, max_size: int
    ) -> Tensor:
        """Converts the image to 8 bits, resizes it as Pillow does, and normalises it."""
        height, width = image.shape[1:]
        size = (
            self._resized_shape(height, width, min_size, max_size) if min_size else (height, width)
        )
        if exporting():
            keeps_size = statically_true(size[0] == height) and statically_true(size[1] == width)
        else:
            keeps_size = size == (height, width)
        if keeps_size:
            return normalise(image)
        pixels = (image * 255).round().clamp(0, 255)
        if torch.compiler.is_compiling():  # a graph cannot call Pillow
            resized = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
        else:
            resized = _resize_with_pillow(pixels, size)
        return normalise(resized.to(image).round() / 255)


class MaskRCNNBenchmark(ResizedByPillow):
    """The convention of maskrcnn-benchmark: x2 and y2 are inclusive, the last pixel of a box.

    Its widths, x2 - x1 + 1, equal the widths here, so overlaps, deltas and areas agree. The
    differences: regions are pooled from x1 to the last pixel instead of the end of the box; clipped
    boxes keep a pixel of the image; masks, keypoints and the conversion to the image use the last
    pixel; images are resized as in Pillow, in 8 bits with antialiasing. A box whose IoU equals the
    NMS threshold is kept, as in its CUDA code.
    """

    def clip(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Clips boxes to the image, leaving each at least one pixel."""
        height, width = size
        first = boxes.new_tensor([0, 0, 1, 1])
        last = boxes.new_tensor([width - 1, height - 1, width, height])
        return boxes.clamp(first, last)

    def corners(self, boxes: Tensor) -> Tensor:
        """Subtracts 1 from x2 and y2: the second corner is the last pixel."""
        return boxes - boxes.new_tensor([0, 0, 1, 1])

    def boxes(self, corners: Tensor) -> Tensor:
        """Inverts :meth:`corners`."""
        return corners + corners.new_tensor([0, 0, 1, 1])

    def clip_to_image(self, corners: Tensor, size: tuple[int, int]) -> Tensor:
        """Returns the corners unchanged."""
        return corners

    def pool(
        self,
        features: Sequence[Tensor],
        boxes: Sequence[Tensor],
        output_size: int,
        scales: Sequence[float],
        sampling_ratio: int,
        canonical_scale: float,
        canonical_level: int,
    ) -> Tensor:
        """Pools level by level.

        The level depends on the whole box, but pooling ends at its last pixel.
        """
        rois = as_rois("roi_align", [self.corners(b) for b in boxes])
        if len(scales) == 1:
            return roi_align(features[0], rois, output_size, scales[0], sampling_ratio)
        size = torch.cat(list(boxes)).unflatten(1, (2, 2)).diff(dim=1)
        side = size.prod(dim=2).squeeze(1).sqrt()
        # Levels from the given scales: "Feature Pyramid Networks" (Lin et al., 2017), equation 1.
        finest, coarsest = (-int(math.log2(s)) for s in (scales[0], scales[-1]))
        exact_level = (side / canonical_scale + 1e-6).log2() + canonical_level
        level = exact_level.floor().clamp(finest, coarsest).long() - finest
        channels = features[0].size(1)
        pooled = features[0].new_zeros(rois.size(0), channels, output_size, output_size)
        for i, scale in enumerate(scales):
            rows = (level == i).nonzero().squeeze(1)
            part = roi_align(features[i], rois[rows], output_size, scale, sampling_ratio)
            pooled = pooled.index_copy(0, rows, part)
        return pooled

    def _resized_shape(
        self, height: int, width: int, min_size: int, max_size: int
    ) -> tuple[int, int]:
        """Reduces ``min_size`` until the longer side fits, then rounds the longer side down."""
        shorter, longer = min(height, width), max(height, width)
        if longer / shorter * min_size > max_size:
            min_size = round(max_size * shorter / longer)
        if min_size == shorter:
            return height, width
        if width < height:
            return int(min_size * height / width), min_size
        return min_size, int(min_size * width / height)


class Detectron2(ResizedByPillow):
    """The convention of detectron2: boxes as here, but half-pixel accurate pooling and pasting.

    The differences: anchors are not rounded, and are ordered by size, then by ratio; regions are
    pooled with ``aligned=True``; the borders between levels have no epsilon; sides of proposals
    must exceed the minimum; detections may be arbitrarily small, and those without area are dropped
    at the very end, after the limit on detections has counted them; RetinaNet boxes are not clipped
    before NMS; boxes are not moved to whole pixels before masks are pasted; images are resized as
    in Pillow, with sides rounded to the nearest.
    """

    min_side = 0
    aligned = True
    # detops.multiscale_roi_align adds 1e-6 to the logarithm of the level. The epsilon of detectron2
    # is lost in float32, but rounding still lifts a side of 223.99998 to the level of 224, as an
    # epsilon of 1e-7 would. The factor cancels the rest.
    scale_factor = 2**0.9e-6

    def cell_anchors(self, sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
        """Returns anchors centred on (0, 0), ordered by size, then by ratio."""
        size = torch.tensor(sizes, dtype=torch.float64)[:, None]
        ratio = torch.tensor(aspect_ratios, dtype=torch.float64)
        width = (size**2 / ratio).sqrt()
        corner = torch.stack([width, width * ratio], dim=2).flatten(0, 1) / 2
        return torch.cat([-corner, corner], dim=1).float()

    def select_large(self, boxes: Tensor, side: float) -> Tensor:
        """Returns the indices of boxes ``[N, 4]`` with both sides above ``side`` pixels."""
        sides = boxes[:, 2:] - boxes[:, :2]
        return (sides > side).all(dim=1).nonzero().squeeze(1)

    def clip_dense(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Returns the boxes unchanged: they are only clipped in the original image."""
        return boxes

    def select_visible(self, detection: dict[str, Tensor]) -> dict[str, Tensor]:
        """Selects the detections whose boxes have an area."""
        rows = self.select_large(detection["boxes"], 0)
        return {key: value[rows] for key, value in detection.items()}

    def paste(
        self, masks: Tensor, corners: Tensor, size: tuple[int, int], threshold: float
    ) -> Tensor:
        """Pastes masks; see :func:`detops.paste_masks_in_image`."""
        return paste_masks_in_image(masks, corners, size, threshold).unsqueeze(1)

    def _resized_shape(
        self, height: int, width: int, min_size: int, max_size: int
    ) -> tuple[int, int]:
        """Rounds both sides once, at the end."""
        scale = min_size / sym_min(height, width)
        new_height, new_width = scale * height, scale * width
        if not exporting():  # keeps the shorter side exact, which matters for rounding at .5
            new_height, new_width = (
                (min_size, new_width) if height < width else (new_height, min_size)
            )
        scale = sym_min(1.0, max_size / sym_max(new_height, new_width))
        return sym_max(1, math.trunc(new_height * scale + 0.5)), sym_max(
            1, math.trunc(new_width * scale + 0.5)
        )


def _resize_with_pillow(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    pillow_image = Image.fromarray(pixels.permute(1, 2, 0).to("cpu", torch.uint8).numpy())
    resized = pillow_image.resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


CONVENTIONS = {
    "detops": Convention(),
    "maskrcnn-benchmark": MaskRCNNBenchmark(),
    "detectron2": Detectron2(),
}


def get_convention(cfg: Any) -> Convention:
    """Returns the convention that MODEL.CONVENTION names."""
    if cfg.MODEL.CONVENTION not in CONVENTIONS:
        raise ConfigError(
            f"MODEL.CONVENTION: expected one of {', '.join(CONVENTIONS)}, "
            f"got {cfg.MODEL.CONVENTION}"
        )
    return CONVENTIONS[cfg.MODEL.CONVENTION]
