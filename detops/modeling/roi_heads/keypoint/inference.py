"""From heat maps to keypoints."""

import torch
from torch import Tensor

# Positions looked at in a cell, along each axis: finer than this, a heat map has nothing to tell.
FINEST = 16


def heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each heat map's maximum, between its cells, by bicubic interpolation.

    maskrcnn-benchmark and torchvision enlarge every map to the pixels of its box and take the best
    pixel. Here only the pixels within a cell of the best cell are computed, of all maps at once;
    where the map has one clear maximum, the result is theirs. A map is never shrunk, as they do
    for a box of fewer pixels than cells, and never enlarged beyond 16 times.

    Args:
        maps: ``[K, n, M, M]``.
        boxes: ``[K, 4]`` as (x1, y1, x2, y2).

    Returns:
        ``[K, n, 3]`` as (x, y, 1), and the maxima ``[K, n]``.
    """
    size = maps.size(-1)
    flat = maps.flatten(2)
    if flat.size(0) == 0:
        return maps.new_zeros(*flat.shape[:2], 3), maps.new_zeros(flat.shape[:2])
    best = flat.argmax(dim=2)
    sides = (boxes[:, 2:] - boxes[:, :2]).unsqueeze(1)
    # How many the enlarged map has.
    pixels = sides.ceil().clamp(size, FINEST * size)
    x, weight_x, cell_x = _around(best % size, pixels[..., 0], size)
    y, weight_y, cell_y = _around(best // size, pixels[..., 1], size)
    cells = (cell_y.unsqueeze(-1) * size + cell_x.unsqueeze(-2)).flatten(2)
    values = weight_y @ flat.gather(2, cells).unflatten(2, (5, 5)) @ weight_x.mT
    scores, best = values.flatten(2).max(dim=2, keepdim=True)
    x, y = x.gather(2, best % x.size(2)), y.gather(2, best // x.size(2))
    xy = boxes[:, None, :2] + (torch.cat([x, y], dim=2) + 0.5) / pixels * sides
    return torch.cat([xy, torch.ones_like(x)], dim=2), scores.squeeze(2)


def _around(best: Tensor, pixels: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """One axis: the pixels within a cell of the best one, and how to interpolate them.

    Args:
        best: ``[K, n]`` cells.
        pixels: ``[K, 1]``, on ``size`` cells.
        size: cells of the map.

    Returns:
        P pixels ``[K, n, P]``, some of them more than once; weights ``[K, n, P, 5]`` of the five
        cells ``[K, n, 5]`` around the best.
    """
    best, per_cell = best.unsqueeze(-1), (pixels / size).unsqueeze(-1)
    reach = int(per_cell.max().ceil())
    middle = ((best + 0.5) * per_cell).floor()
    first = ((best - 0.5) * per_cell - 0.5).ceil().clamp(min=0)
    last = ((best + 1.5) * per_cell - 0.5).floor().minimum(pixels.unsqueeze(-1) - 1)
    pixel = (middle + torch.arange(-reach, reach + 1, device=best.device)).clamp(first, last)
    around = best + torch.arange(-2, 3, device=best.device)
    distance = ((pixel + 0.5) / per_cell - 0.5).unsqueeze(-1) - around.unsqueeze(-2)
    # Beyond the border, its value goes on.
    return pixel, _cubic(distance.abs()), around.clamp(0, size - 1)


def _cubic(t: Tensor, a: float = -0.75) -> Tensor:
    """Keys' kernel, with the bend that torch.nn.functional.interpolate and OpenCV have."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, 0))
