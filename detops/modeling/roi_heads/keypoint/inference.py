"""From heat maps to keypoints."""

import torch
from torch import Tensor

# Pixels in a cell, along each axis, that are told apart: a heat map has nothing finer to tell, and
# the memory that the enlarged maps take is bounded.
FINEST = 16
# Detections at a time; of similar size, for the smaller ones are filled up.
GROUP = 4


def heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each heat map's maximum.

    As in maskrcnn-benchmark and torchvision, a map is enlarged to the pixels of its box by bicubic
    interpolation, and the best pixel is taken. The enlargement is two matrix products.

    Args:
        maps: ``[K, n, M, M]``.
        boxes: ``[K, 4]`` as (x1, y1, x2, y2).

    Returns:
        ``[K, n, 3]`` as (x, y, 1), and the maxima ``[K, n]``.
    """
    if torch.compiler.is_compiling():
        # How often the search goes around depends on the boxes: to a graph it is one operation.
        return torch.ops.detops_modeling.heatmaps_to_keypoints(maps, boxes)
    return _search(maps, boxes)


def _search(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    pixels = sides.ceil().clamp(max=FINEST * maps.size(-1))
    best = torch.empty_like(maps[:, :, 0, :2])
    scores = torch.empty_like(maps[:, :, 0, 0])
    # [K, y, n, x]: so all maps of a detection are one matrix, in both products.
    maps = maps.transpose(1, 2).contiguous()
    order = pixels.prod(dim=1).argsort()
    for start in range(0, len(order), GROUP):
        rows = order[start : start + GROUP]
        x, y = (_enlargement(count, maps.size(-1)) for count in pixels[rows].unbind(dim=1))
        # Half precision could not tell neighbouring pixels apart.
        with torch.autocast(maps.device.type, enabled=False):
            tall = (y @ maps[rows].flatten(2)).unflatten(2, maps.shape[2:])
            enlarged = (tall.flatten(1, 2) @ x.mT).unflatten(1, tall.shape[1:3])
        in_row, column = enlarged.max(dim=3)
        scores[rows], row = in_row.max(dim=1)
        column = column.gather(1, row.unsqueeze(1)).squeeze(1)
        best[rows] = torch.stack([column, row], dim=2).to(best)
    # Each map's own last pixel stands for those that fill it up.
    best = torch.minimum(best, pixels.unsqueeze(1) - 1)
    xy = boxes[:, None, :2] + (best + 0.5) * (sides / pixels).unsqueeze(1)
    return torch.cat([xy, torch.ones_like(xy[..., :1])], dim=2), scores


_operation = torch.library.custom_op(
    "detops_modeling::heatmaps_to_keypoints", _search, mutates_args=()
)


@_operation.register_fake
def _(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    count, keypoints = maps.shape[:2]
    return boxes.new_empty(count, keypoints, 3), maps.new_empty(count, keypoints)


def _enlargement(pixels: Tensor, size: int) -> Tensor:
    """Matrices ``[K, P, size]`` from ``size`` cells to ``pixels`` ``[K]`` pixels.

    P is the largest; beyond its own, a matrix repeats the last pixel.
    """
    pixels = pixels.unsqueeze(1)
    pixel = torch.arange(int(pixels.max()), device=pixels.device).minimum(pixels - 1)
    place = (pixel + 0.5) * (size / pixels) - 0.5
    cell = torch.arange(-2, size + 2, device=pixels.device)
    weights = _cubic((place.unsqueeze(2) - cell).abs())
    # Beyond the border, its value goes on.
    matrix = weights[..., 2:-2].clone()
    matrix[..., 0] += weights[..., :2].sum(dim=2)
    matrix[..., -1] += weights[..., -2:].sum(dim=2)
    return matrix


def _cubic(t: Tensor, a: float = -0.75) -> Tensor:
    """Keys' kernel, with the bend that torch.nn.functional.interpolate and OpenCV have."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, 0))
