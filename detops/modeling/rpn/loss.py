"""Loss of the region proposal network: "Faster R-CNN" (Ren et al., 2015), equation 1."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...distributed import mean_count
from ...ops import BoxCoder
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher

BETA = 1 / 9  # where smooth L1 turns linear


class RPNLoss:
    """Binary cross entropy of the objectness, smooth L1 of the deltas, on sampled anchors."""

    def __init__(self, matcher: Matcher, sampler: BalancedSampler, box_coder: BoxCoder) -> None:
        self.matcher = matcher
        self.sampler = sampler
        self.box_coder = box_coder

    def __call__(
        self,
        logits: Tensor,
        deltas: Tensor,
        anchors: Tensor,
        visible: list[Tensor],
        targets: list[dict[str, Any]],
    ) -> dict[str, Tensor]:
        """The two losses, as means over the anchors sampled from the batch.

        Args:
            logits: ``[N, A]``.
            deltas: ``[N, A, 4]``.
            anchors: ``[A, 4]``.
            visible: per image bool ``[A]``: the anchors that may be sampled.
            targets: per image ``boxes`` ``[G, 4]``.
        """
        sampled, labels, positive, wanted = [], [], [], []
        for i, target in enumerate(targets):
            boxes = target["boxes"].to(anchors)
            match = self.matcher(boxes, anchors)
            match = torch.where(visible[i], match, -2)
            # Matched 1, background 0, left out -1: what the sampler reads.
            eligible = (match >= 0).long() - (match == -2).long()
            drawn, background = self.sampler(eligible, target.get("generator"))
            offset = i * anchors.size(0)
            sampled += [drawn + offset, background + offset]
            labels += [torch.ones_like(drawn), torch.zeros_like(background)]
            positive.append(drawn + offset)
            wanted.append(self.box_coder.encode(boxes[match[drawn]], anchors[drawn]))
        index = torch.cat(sampled)
        count = mean_count(index.numel(), logits)
        objectness = F.binary_cross_entropy_with_logits(
            logits.flatten()[index], torch.cat(labels).to(logits), reduction="sum"
        )
        regression = F.smooth_l1_loss(
            deltas.flatten(0, 1)[torch.cat(positive)], torch.cat(wanted), beta=BETA, reduction="sum"
        )
        return {"loss_objectness": objectness / count, "loss_rpn_box_reg": regression / count}
