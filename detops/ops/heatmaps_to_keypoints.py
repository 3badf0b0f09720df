"""From heat maps to keypoints."""

from torch import Tensor

from ..registration import constant

_heatmaps_to_keypoints = constant("heatmaps_to_keypoints")


def heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each heat map's maximum in its box, and the maximum.

    "Mask R-CNN" (He et al., 2017), section 5. As in maskrcnn-benchmark, detectron2 and torchvision,
    a map is enlarged to the pixels of its box by bicubic interpolation (Keys, 1981, with a = -0.75,
    as ``torch.nn.functional.interpolate`` has it), and the largest pixel is taken, of equals the
    first. A side is at least one pixel long; of one with more than 16 pixels a cell, 16 a cell are
    told apart. A NaN is larger than anything. Computed in float32 at least; the same pixel on every
    instruction set and number of threads. Not differentiable.

    Args:
        maps: ``[K, N, H, W]``, a map per keypoint.
        boxes: ``[K, 4]`` as (x1, y1, x2, y2) in pixels.

    Returns:
        the centres of pixels, ``[K, N, 3]`` as (x, y, 1) in the dtype of ``boxes``, and the maxima,
        ``[K, N]`` in that of ``maps``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices.

    Example:
        >>> maps = torch.zeros(1, 1, 4, 4)
        >>> maps[0, 0, 1, 2] = 1
        >>> points, scores = heatmaps_to_keypoints(maps, torch.tensor([[10.0, 20, 14, 24]]))
        >>> points, scores
        (tensor([[[12.5000, 21.5000,  1.0000]]]), tensor([[1.]]))
    """
    keypoints, scores = _heatmaps_to_keypoints(maps, boxes)
    return keypoints, scores
