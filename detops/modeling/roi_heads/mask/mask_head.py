"""The mask head: "Mask R-CNN" (He et al., 2017)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .loss import Regions, mask_loss


class MaskHead(nn.Module):
    """The feature extractor, predictor and loss of the mask head.

    Args:
        feature_extractor: maps levels and boxes to feature maps.
        predictor: maps feature maps and labels to one mask each.
        share_box_features: the feature extractor is the box head's, whose results are reused in
            training.
    """

    def __init__(
        self,
        *,
        feature_extractor: nn.Module,
        predictor: nn.Module,
        share_box_features: bool = False,
    ) -> None:
        super().__init__()
        self.feature_extractor = feature_extractor
        self.predictor = predictor
        self.share_box_features = share_box_features

    def forward(
        self,
        features: Sequence[Tensor],
        regions: Regions,
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[Regions, dict[str, Tensor]]:
        """Adds ``masks`` in inference, computes the loss in training.

        Args:
            features: per level ``[N, C, H, W]``.
            regions: results of the box head for each image.
            image_sizes: (height, width) of each image inside the batch.
            targets: in training, per image ``masks`` ``[G, h, w]``.

        Returns:
            The regions, in inference with ``masks`` ``[K, 1, M, M]``, probabilities inside each box
            for its label; losses by name.
        """
        if self.training and self.share_box_features:
            x = torch.cat([r["features"] for r in regions])
        else:
            x = self.feature_extractor(features, [r["boxes"] for r in regions])
        logits = self.predictor(x, torch.cat([r["labels"] for r in regions]))
        if self.training:
            if targets is None:
                raise ValueError("MaskHead: targets are required in training, got None")
            return regions, {"loss_mask": mask_loss(logits, regions, image_sizes, targets)}
        masks = logits.sigmoid().unsqueeze(1).split([r["boxes"].size(0) for r in regions])
        return [r | {"masks": m} for r, m in zip(regions, masks, strict=True)], {}
