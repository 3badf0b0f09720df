"""The container of the heads on regions of interest."""

from collections.abc import Sequence

from torch import Tensor, nn

from .box import BoxHead
from .box.inference import Candidates
from .keypoint import KeypointHead
from .mask import MaskHead


class RoIHeads(nn.Module):
    """The box head, and the heads that work on its detections.

    Args:
        box: maps proposals to detections.
        mask: adds masks to detections.
        keypoint: adds keypoints to detections.
    """

    def __init__(
        self, *, box: BoxHead, mask: MaskHead | None = None, keypoint: KeypointHead | None = None
    ) -> None:
        super().__init__()
        self.box = box
        self.mask = mask
        self.keypoint = keypoint

    def forward(
        self,
        features: Sequence[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
        extra_candidates: list[list[Candidates]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Returns the detections of each image in inference, the losses in training.

        See the heads for shapes.
        """
        regions, losses = self.box(features, proposals, image_sizes, targets, extra_candidates)
        if self.mask is not None:
            regions, mask_losses = self.mask(features, regions, image_sizes, targets)
            losses = losses | mask_losses
        if self.keypoint is not None:
            regions, keypoint_losses = self.keypoint(features, regions, targets)
            losses = losses | keypoint_losses
        return regions, losses
