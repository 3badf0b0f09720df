"""Loss of the region proposal network: "Faster R-CNN" (Ren et al., 2015), equation 1."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...distributed import mean_count
from ...ops import BoxCoder
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher

BETA = 1 / 9  # error at which smooth L1 becomes linear


class Sample(NamedTuple):
    """The anchors of a batch that the loss is computed on.

    ``anchors`` are int64 ``[K]``, indices over all images. ``labels`` are ``[K]``, 1 for an object.
    ``deltas`` are ``[p, 4]``, the regression targets of the objects' anchors, in their order.
    """

    anchors: Tensor
    labels: Tensor
    deltas: Tensor


class RPNLoss:
    """Binary cross entropy of the objectness and smooth L1 of the deltas, on sampled anchors."""

    def __init__(self, matcher: Matcher, sampler: BalancedSampler, box_coder: BoxCoder) -> None:
        self.matcher = matcher
        self.sampler = sampler
        self.box_coder = box_coder

    def sample(
        self, anchors: Tensor, visible: list[Tensor], targets: list[dict[str, Any]]
    ) -> Sample:
        """Samples anchors of each image.

        Args:
            anchors: ``[A, 4]``.
            visible: per image bool ``[A]``: the anchors that may be sampled.
            targets: per image ``boxes`` ``[G, 4]``.
        """
        sampled, labels, deltas = [], [], []
        for i, target in enumerate(targets):
            boxes = target["boxes"].to(anchors)
            match = self.matcher(boxes, anchors)
            match = torch.where(visible[i], match, -2)
            # Labels for the sampler: 1 for matched, 0 for background, -1 for ignored anchors.
            eligible = (match >= 0).long() - (match == -2).long()
            foreground, background = self.sampler(eligible, target.get("generator"))
            sampled += [foreground + i * anchors.size(0), background + i * anchors.size(0)]
            labels += [torch.ones_like(foreground), torch.zeros_like(background)]
            deltas.append(self.box_coder.encode(boxes[match[foreground]], anchors[foreground]))
        return Sample(torch.cat(sampled), torch.cat(labels), torch.cat(deltas))

    def __call__(self, logits: Tensor, deltas: Tensor, sample: Sample) -> dict[str, Tensor]:
        """Returns the two losses, as means over the sample.

        Args:
            logits: ``[K]``, of the sampled anchors.
            deltas: ``[K, 4]``, of the sampled anchors.
            sample: from :meth:`sample`.
        """
        count = mean_count(sample.labels.numel(), logits)
        objectness = F.binary_cross_entropy_with_logits(
            logits, sample.labels.to(logits), reduction="sum"
        )
        regression = F.smooth_l1_loss(
            deltas[sample.labels == 1], sample.deltas, beta=BETA, reduction="sum"
        )
        return {"loss_objectness": objectness / count, "loss_rpn_box_reg": regression / count}
