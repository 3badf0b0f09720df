"""Loss of the mask head: "Mask R-CNN" (He et al., 2017), section 3."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ....distributed import mean_count
from ....ops.roi_align import roi_align

Regions = list[dict[str, Tensor]]


@torch.no_grad()
def crop_masks(masks: Tensor, truth: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Computes the targets of a mask head: the mask inside each box, resized to a square.

    A cell holds the fraction of its area that the mask covers. Fractions are not thresholded: cross
    entropy accepts them, and they encode where the border crosses a cell. Pixel x extends from x to
    x + 1, as in the inverse, :func:`~detops.paste_masks_in_image`.

    Args:
        masks: ``[G, h, w]``, nonzero inside.
        truth: int64 ``[p]``, index of each box's mask.
        boxes: ``[p, 4]`` in pixels of the masks.
        size: cells per side.

    Returns:
        float32 ``[p, size, size]``.
    """
    rois = torch.cat([truth.to(boxes).unsqueeze(1), boxes], dim=1)
    pixels = masks.to(boxes.device).bool().unsqueeze(1).float()
    return roi_align(pixels, rois, size, aligned=True).squeeze(1)


def mask_loss(
    logits: Tensor,
    positives: Regions,
    image_sizes: list[tuple[int, int]],
    targets: list[dict[str, Tensor]],
) -> Tensor:
    """Returns the mean binary cross entropy over all cells of true-class masks; 0 without any.

    Args:
        logits: ``[K, M, M]``, positives of all images in order, each for its class.
        positives: per image ``boxes`` ``[p, 4]`` and ``truth`` ``[p]``.
        image_sizes: (height, width) of each image inside the batch.
        targets: per image ``masks`` ``[G, h, w]``, of any size: boxes are scaled to them, so masks
            need not be resized with their image.
    """
    target_masks = []
    for region, (height, width), target in zip(positives, image_sizes, targets, strict=True):
        masks, boxes = target["masks"], region["boxes"]
        y, x = masks.size(1) / height, masks.size(2) / width
        scaled = boxes * boxes.new_tensor([x, y, x, y])
        target_masks.append(crop_masks(masks, region["truth"], scaled, logits.size(-1)))
    total = F.binary_cross_entropy_with_logits(logits, torch.cat(target_masks), reduction="sum")
    return total / (mean_count(len(logits), logits) * logits.size(-1) ** 2)
