"""Sampling of proposals and loss of the box head: "Fast R-CNN" (Girshick, 2015), section 2.3."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ....distributed import mean_count
from ....ops import BoxCoder
from ...balanced_sampler import BalancedSampler
from ...matcher import Matcher


class Sampled(NamedTuple):
    """Proposals of one image sampled for training, positives first.

    ``boxes`` are ``[n, 4]``; ``labels`` are int64 ``[n]``, 0 for background. ``matched``
    ``[p, 4]`` is the ground truth of the positives; ``truth`` is int64 ``[p]``, its index among the
    targets.
    """

    boxes: Tensor
    labels: Tensor
    matched: Tensor
    truth: Tensor

    def positives(self, features: Tensor) -> dict[str, Tensor]:
        """Returns what other heads train on; ``features`` ``[n, ...]`` are the box head's."""
        p = len(self.truth)
        return {
            "boxes": self.boxes[:p],
            "labels": self.labels[:p],
            "truth": self.truth,
            "features": features[:p],
        }


class BoxLoss:
    """Cross entropy of the classes, and smooth L1 of the deltas of the true class."""

    def __init__(
        self,
        matcher: Matcher,
        sampler: BalancedSampler,
        box_coder: BoxCoder,
        class_agnostic: bool,
    ) -> None:
        self.matcher = matcher
        self.sampler = sampler
        self.box_coder = box_coder
        self.class_agnostic = class_agnostic

    @torch.no_grad()
    def sample(self, proposals: Tensor, target: dict[str, Any]) -> Sampled:
        """Samples from proposals ``[n, 4]`` and the ground truth itself."""
        truth = target["boxes"].to(proposals)
        boxes = torch.cat([proposals, truth])
        match = self.matcher(truth, boxes)
        eligible = (match >= 0).long() - (match == -2).long()
        positive, negative = self.sampler(eligible, target.get("generator"), boxes)
        index = match[positive]
        labels = target["labels"][index]
        return Sampled(
            boxes[torch.cat([positive, negative])],
            torch.cat([labels, labels.new_zeros(negative.numel())]),
            truth[index],
            index,
        )

    def __call__(self, logits: Tensor, deltas: Tensor, sampled: list[Sampled]) -> dict[str, Tensor]:
        """Returns the two losses, as means over all sampled proposals.

        Args:
            logits: ``[K, C]``, samples of all images in order.
            deltas: ``[K, 4 C]``.
            sampled: samples of each image.
        """
        labels = torch.cat([s.labels for s in sampled])
        count = mean_count(labels.numel(), logits)
        classification = F.cross_entropy(logits, labels, reduction="sum")
        positive = torch.nonzero(labels > 0).squeeze(1)
        delta_class = labels[positive].clamp(max=1) if self.class_agnostic else labels[positive]
        predicted = deltas.unflatten(1, (deltas.size(1) // 4, 4))[positive, delta_class]
        boxes = torch.cat([s.boxes for s in sampled])[positive]
        target_deltas = self.box_coder.encode(torch.cat([s.matched for s in sampled]), boxes)
        regression = F.smooth_l1_loss(predicted, target_deltas, beta=1.0, reduction="sum")
        return {"loss_classifier": classification / count, "loss_box_reg": regression / count}
