"""The keypoint head: "Mask R-CNN" (He et al., 2017), section 5."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ....ops import heatmaps_to_keypoints
from ...convention import Convention
from .loss import IGNORED_CELL, keypoint_cells, keypoint_loss

Regions = list[dict[str, Tensor]]


class KeypointHead(nn.Module):
    """The feature extractor, predictor and loss of the keypoint head.

    Args:
        feature_extractor: maps levels and boxes to feature maps.
        predictor: maps feature maps to one heat map per keypoint.
        resolution: cells per side of the heat maps.
        share_box_features: the feature extractor is the box head's, whose results are reused in
            training.
        convention: determines which part of a box a heat map covers.
    """

    def __init__(
        self,
        *,
        feature_extractor: nn.Module,
        predictor: nn.Module,
        resolution: int,
        share_box_features: bool = False,
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.feature_extractor = feature_extractor
        self.predictor = predictor
        self.resolution = resolution
        self.share_box_features = share_box_features
        self.convention = convention

    def forward(
        self,
        features: Sequence[Tensor],
        regions: Regions,
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[Regions, dict[str, Tensor]]:
        """Adds keypoints in inference, computes the loss in training.

        Args:
            features: per level ``[N, C, H, W]``.
            regions: results of the box head for each image.
            targets: in training, per image ``keypoints`` ``[G, n, 3]`` in pixels of the batch.

        Returns:
            The regions, in inference with ``keypoints`` ``[K, n, 3]`` as (x, y, 1) and
            ``keypoints_scores`` ``[K, n]``, logits; losses by name.
        """
        if not self.training:
            boxes = [r["boxes"] for r in regions]
            maps = self.predictor(self.feature_extractor(features, boxes))
            points, scores = heatmaps_to_keypoints(maps, self.convention.corners(torch.cat(boxes)))
            counts = [b.size(0) for b in boxes]
            return [
                r | {"keypoints": p, "keypoints_scores": s}
                for r, p, s in zip(regions, points.split(counts), scores.split(counts), strict=True)
            ], {}
        if targets is None:
            raise ValueError("KeypointHead: targets are required in training, got None")
        cells = [
            keypoint_cells(t["keypoints"].to(r["boxes"])[r["truth"]], r["boxes"], self.resolution)
            for r, t in zip(regions, targets, strict=True)
        ]
        # Boxes without a visible keypoint do not contribute to the loss.
        has_keypoints = [(c != IGNORED_CELL).any(dim=1) for c in cells]
        if self.share_box_features:
            x = torch.cat([r["features"][t] for r, t in zip(regions, has_keypoints, strict=True)])
        else:
            boxes = [r["boxes"][t] for r, t in zip(regions, has_keypoints, strict=True)]
            x = self.feature_extractor(features, boxes)
        target_cells = torch.cat([c[t] for c, t in zip(cells, has_keypoints, strict=True)])
        return regions, {"loss_kp": keypoint_loss(self.predictor(x), target_cells)}
