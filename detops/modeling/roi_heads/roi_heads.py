"""All heads on regions of interest, by name."""

from collections.abc import Sequence

from torch import Tensor, nn

from .box.box_head import BoxHead


class RoIHeads(nn.Module):
    """The box head; others stand beside it under their own names."""

    def __init__(self, *, box: BoxHead) -> None:
        super().__init__()
        self.box = box

    def forward(
        self,
        features: Sequence[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections of each image in inference, losses in training; see :class:`BoxHead`."""
        return self.box(features, proposals, image_sizes, targets)
