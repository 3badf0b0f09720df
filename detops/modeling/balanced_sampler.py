"""Draws the boxes that a loss is computed on."""

import torch
from torch import Tensor


class BalancedSampler:
    """At most ``batch_size_per_image`` boxes, at most ``positive_fraction`` of them positive.

    "Fast R-CNN" (Girshick, 2015), section 2.3. Each box draws a lot, and the lowest win. So a box
    more or less, for which a rounding error is enough, changes one lot and not all that follow:
    runs that ought to be equal, such as those of one and of two processes, stay close.
    """

    def __init__(self, batch_size_per_image: int, positive_fraction: float) -> None:
        self.batch_size_per_image = batch_size_per_image
        self.positive_fraction = positive_fraction

    def __call__(
        self,
        labels: Tensor,
        generator: torch.Generator | None = None,
        boxes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draws from one image.

        Args:
            labels: ``[N]``: at least 1 positive, 0 negative, below 0 not to be drawn.
            generator: of the random numbers; torch's default one if None.
            boxes: ``[N, 4]`` in pixels. If given, lots go by place; otherwise by index, for boxes
                that are the same every time.

        Returns:
            indices of the drawn positives and negatives, each ascending.
        """
        if boxes is None:
            lots = torch.rand(labels.shape, generator=generator, device=labels.device)
        else:
            lots = lots_of(boxes, generator)
        positive = torch.nonzero(labels >= 1).squeeze(1)
        negative = torch.nonzero(labels == 0).squeeze(1)
        n_positive = min(positive.numel(), int(self.batch_size_per_image * self.positive_fraction))
        n_negative = min(negative.numel(), self.batch_size_per_image - n_positive)
        return _draw(positive, lots, n_positive), _draw(negative, lots, n_negative)


def lots_of(boxes: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random numbers int64 ``[N]`` that boxes ``[N, 4]`` of the same whole pixels have in common.

    Multiplicative hashing, Knuth, "The Art of Computer Programming", volume 3, section 6.4.
    """
    seed = torch.randint(2**62, (), generator=generator, device=boxes.device)
    lots = seed.expand(boxes.size(0))
    for coordinate in boxes.nan_to_num().round().long().unbind(dim=1):
        # 2^64 over the golden ratio, as a signed number. The upper half is the better mixed one.
        lots = (lots ^ coordinate) * -7046029254386353131
        lots = lots ^ (lots >> 32)
    return lots


def _draw(candidates: Tensor, lots: Tensor, count: int) -> Tensor:
    return candidates[lots[candidates].topk(count, largest=False).indices].sort().values
