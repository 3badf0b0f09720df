"""All heads on regions of interest, by name."""

from collections.abc import Sequence

from torch import Tensor, nn

from .box import BoxHead
from .box.inference import Candidates
from .keypoint import KeypointHead
from .mask import MaskHead


class RoIHeads(nn.Module):
    """The box head, and those that work on what it finds.

    Args:
        box: from proposals to detections.
        mask: their masks.
        keypoint: their keypoints.
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
        more: list[list[Candidates]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections of each image in inference, losses in training; see the heads."""
        regions, losses = self.box(features, proposals, image_sizes, targets, more)
        if self.mask is not None:
            regions, mask_losses = self.mask(features, regions, image_sizes, targets)
            losses = losses | mask_losses
        if self.keypoint is not None:
            regions, keypoint_losses = self.keypoint(features, regions, targets)
            losses = losses | keypoint_losses
        return regions, losses
