"""What a box, a pooled region and a resized image are: as here, or as where weights come from."""

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
from .symbolic import exporting, larger, smaller, surely


class Convention:
    """This package's, which is torchvision's: a box ends before its second corner.

    Inside a detector boxes have this form whatever the convention. Another one has its say where
    something is read or cut by them.
    """

    # In pixels: what clipping leaves of a box that lies beside the image is no detection.
    least_side = 0.01
    # See :func:`detops.roi_align`.
    aligned = False
    # Of a level's canonical scale.
    scale_factor = 1.0

    def cell_anchors(self, sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
        """Anchors centred on (0, 0), in whole pixels, ratio by ratio.

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

    def large(self, boxes: Tensor, side: float) -> Tensor:
        """Indices of the boxes ``[N, 4]`` whose sides are both at least ``side`` pixels.

        A NaN is not: such a box is left out, too.
        """
        return remove_small_boxes(boxes, side)

    def clip(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Boxes ``[..., 4]`` inside an image of (height, width)."""
        return clip_boxes_to_image(boxes, size)

    def clip_dense(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """The same of a RetinaNet's boxes, before they are thinned."""
        return self.clip(boxes, size)

    def corners(self, boxes: Tensor) -> Tensor:
        """What stands for boxes ``[N, 4]`` where masks and keypoints are put into them."""
        return boxes

    def boxes(self, corners: Tensor) -> Tensor:
        """The inverse of :meth:`corners`."""
        return corners

    def in_image(self, corners: Tensor, size: tuple[int, int]) -> Tensor:
        """Corners that were moved from the batch into an image of (height, width)."""
        return clip_boxes_to_image(corners, size)

    def visible(self, detection: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those detections, boxes as :meth:`in_image` gives them, that are given back: all."""
        return detection

    def paste(
        self, masks: Tensor, corners: Tensor, size: tuple[int, int], threshold: float
    ) -> Tensor:
        """Masks ``[K, 1, M, M]`` in an image of (height, width): see ``modeling/paste.py``."""
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
        """See :func:`detops.multiscale_roi_align`."""
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
        self, image: Tensor, normalise: Callable[[Tensor], Tensor], small: int, large: int
    ) -> Tensor:
        """An image ``[3, h, w]``, RGB in 0..1, normalised, with a shorter side of ``small`` pixels.

        The longer one has at most ``large``; if ``small`` is 0, the size stays.
        """
        image = normalise(image)
        height, width = image.shape[1:]
        if small == 0:
            return image
        scale = smaller(small / smaller(height, width), large / larger(height, width))
        size = (larger(1, math.trunc(height * scale)), larger(1, math.trunc(width * scale)))
        if not exporting() and size == (height, width):
            return image
        return F.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]


class ResizedByPillow(Convention):
    """An image is resized as Pillow does it: bytes to bytes, and smoothed."""

    def _sides(self, height: int, width: int, small: int, large: int) -> tuple[int, int]:
        """An image's in pixels: the shorter one ``small``, the longer one at most ``large``."""
        raise NotImplementedError

    def resize(
        self, image: Tensor, normalise: Callable[[Tensor], Tensor], small: int, large: int
    ) -> Tensor:
        """As Pillow resizes the 8-bit image that this was."""
        height, width = image.shape[1:]
        size = self._sides(height, width, small, large) if small else (height, width)
        if exporting():
            same = surely(size[0] == height) and surely(size[1] == width)
        else:
            same = size == (height, width)
        if same:
            return normalise(image)
        pixels = (image * 255).round().clamp(0, 255)
        if torch.compiler.is_compiling():  # a graph knows no Pillow
            resized = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
        else:
            resized = _by_pillow(pixels, size)
        return normalise(resized.to(image).round() / 255)


class MaskRCNNBenchmark(ResizedByPillow):
    """maskrcnn-benchmark's: a box contains its second corner, x2 being its last pixel.

    A width there is x2 - x1 + 1, the same as here, so that overlaps, deltas and areas agree. What
    differs: regions are pooled from x1 to the last pixel instead of the end of the box; clipped
    boxes keep a pixel of the image; masks, keypoints and the way back into the image work on the
    last pixel; images are resized as Pillow does it, bytes to bytes and smoothed. A box whose IoU
    equals the threshold of NMS stays, as with its CUDA code.
    """

    def clip(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """No box loses its last pixel."""
        height, width = size
        first = boxes.new_tensor([0, 0, 1, 1])
        last = boxes.new_tensor([width - 1, height - 1, width, height])
        return boxes.clamp(first, last)

    def corners(self, boxes: Tensor) -> Tensor:
        """The second corner is the last pixel."""
        return boxes - boxes.new_tensor([0, 0, 1, 1])

    def boxes(self, corners: Tensor) -> Tensor:
        """The inverse of :meth:`corners`."""
        return corners + corners.new_tensor([0, 0, 1, 1])

    def in_image(self, corners: Tensor, size: tuple[int, int]) -> Tensor:
        """They stay as they are."""
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
        """Each level by itself: it is chosen by the whole box, which the pooling does not see."""
        rois = as_rois("roi_align", [self.corners(b) for b in boxes])
        if len(scales) == 1:
            return roi_align(features[0], rois, output_size, scales[0], sampling_ratio)
        size = torch.cat(list(boxes)).unflatten(1, (2, 2)).diff(dim=1)
        side = size.prod(dim=2).squeeze(1).sqrt()
        # By the scales as they are; "Feature Pyramid Networks" (Lin et al., 2017), equation 1.
        finest, coarsest = (-int(math.log2(s)) for s in (scales[0], scales[-1]))
        wanted = (side / canonical_scale + 1e-6).log2() + canonical_level
        level = wanted.floor().clamp(finest, coarsest).long() - finest
        channels = features[0].size(1)
        pooled = features[0].new_zeros(rois.size(0), channels, output_size, output_size)
        for i, scale in enumerate(scales):
            rows = (level == i).nonzero().squeeze(1)
            part = roi_align(features[i], rois[rows], output_size, scale, sampling_ratio)
            pooled = pooled.index_copy(0, rows, part)
        return pooled

    def _sides(self, height: int, width: int, small: int, large: int) -> tuple[int, int]:
        """The shorter one becomes ``small`` before the longer one is bounded."""
        shorter, longer = min(height, width), max(height, width)
        if longer / shorter * small > large:
            small = round(large * shorter / longer)
        if small == shorter:
            return height, width
        if width < height:
            return int(small * height / width), small
        return small, int(small * width / height)


class Detectron2(ResizedByPillow):
    """detectron2's: boxes as here, sampled and cut with half a pixel more care.

    What differs: anchors are not rounded, and several sizes are counted before the ratios; regions
    are pooled `aligned`; a level's border has no epsilon; proposals need sides above the minimum,
    detections may be as small as they are, and those without area fall at the very end, when the
    limit of detections has counted them; RetinaNet's boxes are thinned unclipped; masks are put
    into boxes that are not moved to whole pixels; images are resized as Pillow does it, their sides
    rounded to the nearest.
    """

    least_side = 0
    aligned = True
    # detops.multiscale_roi_align adds 1e-6 to the level's logarithm; detectron2 adds what is lost
    # in float32, whose rounding still lifts a side of 223.99998 to the level of 224: by 1e-7.
    scale_factor = 2**0.9e-6

    def cell_anchors(self, sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Tensor:
        """Anchors centred on (0, 0), size by size."""
        size = torch.tensor(sizes, dtype=torch.float64)[:, None]
        ratio = torch.tensor(aspect_ratios, dtype=torch.float64)
        width = (size**2 / ratio).sqrt()
        corner = torch.stack([width, width * ratio], dim=2).flatten(0, 1) / 2
        return torch.cat([-corner, corner], dim=1).float()

    def large(self, boxes: Tensor, side: float) -> Tensor:
        """A side that is equal to the minimum does not do."""
        sides = boxes[:, 2:] - boxes[:, :2]
        return (sides > side).all(dim=1).nonzero().squeeze(1)

    def clip_dense(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """They are clipped in the image alone."""
        return boxes

    def visible(self, detection: dict[str, Tensor]) -> dict[str, Tensor]:
        """Those that have an area."""
        rows = self.large(detection["boxes"], 0)
        return {key: value[rows] for key, value in detection.items()}

    def paste(
        self, masks: Tensor, corners: Tensor, size: tuple[int, int], threshold: float
    ) -> Tensor:
        """See :func:`detops.paste_masks_in_image`."""
        return paste_masks_in_image(masks, corners, size, threshold).unsqueeze(1)

    def _sides(self, height: int, width: int, small: int, large: int) -> tuple[int, int]:
        """Rounded once, at the end."""
        scale = small / smaller(height, width)
        tall, wide = scale * height, scale * width
        if not exporting():  # the shorter side is exactly that, where half a pixel decides
            tall, wide = (small, wide) if height < width else (tall, small)
        scale = smaller(1.0, large / larger(tall, wide))
        return larger(1, math.trunc(tall * scale + 0.5)), larger(1, math.trunc(wide * scale + 0.5))


def _by_pillow(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    picture = Image.fromarray(pixels.permute(1, 2, 0).to("cpu", torch.uint8).numpy())
    resized = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


CONVENTIONS = {
    "detops": Convention(),
    "maskrcnn-benchmark": MaskRCNNBenchmark(),
    "detectron2": Detectron2(),
}


def convention_of(cfg: Any) -> Convention:
    """That of MODEL.CONVENTION."""
    if cfg.MODEL.CONVENTION not in CONVENTIONS:
        raise ConfigError(
            f"MODEL.CONVENTION: expected one of {', '.join(CONVENTIONS)}, "
            f"got {cfg.MODEL.CONVENTION}"
        )
    return CONVENTIONS[cfg.MODEL.CONVENTION]
