"""Loss of the region proposal network: "Faster R-CNN" (Ren et al., 2015), equation 1."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...distributed import mean_count
from ...ops import BoxCoder
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher

BETA = 1 / 9  # where smooth L1 turns linear


class Sample(NamedTuple):
    """The anchors of a batch that the loss is computed on.

    ``anchors`` int64 ``[K]``, counted through the images; ``labels`` ``[K]``, 1 for an object;
    ``deltas`` ``[p, 4]``, what the objects' anchors should be moved by, in their order.
    """

    anchors: Tensor
    labels: Tensor
    deltas: Tensor


class RPNLoss:
    """Binary cross entropy of the objectness, smooth L1 of the deltas, on sampled anchors."""

    def __init__(self, matcher: Matcher, sampler: BalancedSampler, box_coder: BoxCoder) -> None:
        self.matcher = matcher
        self.sampler = sampler
        self.box_coder = box_coder

    def sample(
        self, anchors: Tensor, visible: list[Tensor], targets: list[dict[str, Any]]
    ) -> Sample:
        """Draws from each image.

        Args:
            anchors: ``[A, 4]``.
            visible: per image bool ``[A]``: the anchors that may be drawn.
            targets: per image ``boxes`` ``[G, 4]``.
        """
        drawn, labels, deltas = [], [], []
        for i, target in enumerate(targets):
            boxes = target["boxes"].to(anchors)
            match = self.matcher(boxes, anchors)
            match = torch.where(visible[i], match, -2)
            # Matched 1, background 0, left out -1: what the sampler reads.
            eligible = (match >= 0).long() - (match == -2).long()
            object_, background = self.sampler(eligible, target.get("generator"))
            drawn += [object_ + i * anchors.size(0), background + i * anchors.size(0)]
            labels += [torch.ones_like(object_), torch.zeros_like(background)]
            deltas.append(self.box_coder.encode(boxes[match[object_]], anchors[object_]))
        return Sample(torch.cat(drawn), torch.cat(labels), torch.cat(deltas))

    def __call__(self, logits: Tensor, deltas: Tensor, sample: Sample) -> dict[str, Tensor]:
        """The two losses, as means over the sample.

        Args:
            logits: of its anchors, ``[K]``.
            deltas: of its anchors, ``[K, 4]``.
            sample: from the batch.
        """
        count = mean_count(sample.labels.numel(), logits)
        objectness = F.binary_cross_entropy_with_logits(
            logits, sample.labels.to(logits), reduction="sum"
        )
        regression = F.smooth_l1_loss(
            deltas[sample.labels == 1], sample.deltas, beta=BETA, reduction="sum"
        )
        return {"loss_objectness": objectness / count, "loss_rpn_box_reg": regression / count}
