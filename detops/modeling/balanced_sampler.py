"""Sampling of the boxes that a loss is computed on."""

import torch
from torch import Tensor


class BalancedSampler:
    """Samples up to ``batch_size_per_image`` boxes, up to ``positive_fraction`` of them positive.

    "Fast R-CNN" (Girshick, 2015), section 2.3. Each box gets a random number, and the lowest are
    chosen. A rounding error that adds or removes a box therefore changes one number and not all
    that follow: runs that should be equal, such as with one process and with two, stay close.
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
        """Samples the boxes of one image.

        Args:
            labels: ``[N]``: 1 or more for positives, 0 for negatives, below 0 for ignored boxes.
            generator: generator of the random numbers; torch's default one if None.
            boxes: ``[N, 4]`` in pixels. If given, random numbers belong to positions; otherwise to
                indices, for boxes that are the same every time.

        Returns:
            Indices of the sampled positives and negatives, each ascending.
        """
        if boxes is None:
            priorities = torch.rand(labels.shape, generator=generator, device=labels.device)
        else:
            priorities = random_priorities(boxes, generator)
        positive = torch.nonzero(labels >= 1).squeeze(1)
        negative = torch.nonzero(labels == 0).squeeze(1)
        n_positive = min(positive.numel(), int(self.batch_size_per_image * self.positive_fraction))
        n_negative = min(negative.numel(), self.batch_size_per_image - n_positive)
        return _take_lowest(positive, priorities, n_positive), _take_lowest(
            negative, priorities, n_negative
        )


def random_priorities(boxes: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns random int64 ``[N]``, equal for boxes ``[N, 4]`` that round to the same pixels.

    Multiplicative hashing, Knuth, "The Art of Computer Programming", volume 3, section 6.4.
    """
    seed = torch.randint(2**62, (), generator=generator, device=boxes.device)
    priorities = seed.expand(boxes.size(0))
    for coordinate in boxes.nan_to_num().round().long().unbind(dim=1):
        # 2^64 over the golden ratio, as a signed integer. The upper half is mixed better.
        priorities = (priorities ^ coordinate) * -7046029254386353131
        priorities = priorities ^ (priorities >> 32)
    return priorities


def _take_lowest(candidates: Tensor, priorities: Tensor, count: int) -> Tensor:
    return candidates[priorities[candidates].topk(count, largest=False).indices].sort().values
