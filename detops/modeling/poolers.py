"""RoI pooling on the levels of a backbone."""

from collections.abc import Sequence

from torch import Tensor, nn

from .convention import Convention


class Pooler(nn.Module):
    """RoIAlign on the levels of a feature pyramid, with a convention.

    Args:
        output_size: bins per side.
        scales: per level, pixels of the feature map per pixel of the boxes.
        sampling_ratio: sampling points per bin and axis; 0 for about one per pixel.
        canonical_scale: side in pixels of a box that belongs on ``canonical_level``.
        canonical_level: that level, as log2 of its stride.
        convention: determines which part of a box is pooled.
    """

    def __init__(
        self,
        output_size: int,
        scales: Sequence[float],
        sampling_ratio: int,
        canonical_scale: float = 224,
        canonical_level: int = 4,
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.scales = tuple(scales)
        self.sampling_ratio = sampling_ratio
        self.canonical_scale = canonical_scale
        self.canonical_level = canonical_level
        self.convention = convention

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Pools boxes, per image ``[L, 4]``, from levels, finest first: ``[K, C, size, size]``."""
        return self.convention.pool(
            features[: len(self.scales)],
            boxes,
            self.output_size,
            self.scales,
            self.sampling_ratio,
            self.canonical_scale,
            self.canonical_level,
        )
