"""Draws the boxes that a loss is computed on."""

import torch
from torch import Tensor


class BalancedSampler:
    """At most ``batch_size_per_image`` boxes, at most ``positive_fraction`` of them positive.

    "Fast R-CNN" (Girshick, 2015), section 2.3.
    """

    def __init__(self, batch_size_per_image: int, positive_fraction: float) -> None:
        self.batch_size_per_image = batch_size_per_image
        self.positive_fraction = positive_fraction

    def __call__(
        self, labels: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draws from one image.

        Args:
            labels: ``[N]``: at least 1 positive, 0 negative, below 0 not to be drawn.
            generator: of the random numbers; torch's default one if None.

        Returns:
            indices of the drawn positives and negatives, each ascending.
        """
        positive = torch.nonzero(labels >= 1).squeeze(1)
        negative = torch.nonzero(labels == 0).squeeze(1)
        n_positive = min(positive.numel(), int(self.batch_size_per_image * self.positive_fraction))
        n_negative = min(negative.numel(), self.batch_size_per_image - n_positive)
        return _draw(positive, n_positive, generator), _draw(negative, n_negative, generator)


def _draw(candidates: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    order = torch.randperm(candidates.numel(), generator=generator, device=candidates.device)
    return candidates[order[:count]].sort().values
