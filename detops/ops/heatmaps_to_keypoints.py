"""Conversion of heat maps to keypoints."""

from torch import Tensor

from ..registration import constant

_heatmaps_to_keypoints = constant("heatmaps_to_keypoints")


def heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the maximum of each heat map and its position in the box.

    See "Mask R-CNN" (He et al., 2017), section 5. As in maskrcnn-benchmark, detectron2 and
    torchvision, a heat map is enlarged to the pixels of its box by bicubic interpolation (Keys,
    1981, with a = -0.75, as in ``torch.nn.functional.interpolate``), and the first of its largest
    pixels is taken. A side is at least one pixel long. If it has more than 16 pixels per cell, 16
    per cell are searched. NaN is larger than anything. Computed in at least float32. The pixel is
    the same on every instruction set and number of threads. Not differentiable.

    Args:
        maps: ``[K, N, H, W]``, one heat map per keypoint.
        boxes: ``[K, 4]`` as (x1, y1, x2, y2) in pixels.

    Returns:
        The pixel centres, ``[K, N, 3]`` as (x, y, 1) in the dtype of ``boxes``, and the maxima,
        ``[K, N]`` in the dtype of ``maps``.

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
