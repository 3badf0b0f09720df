"""Loss of RetinaNet: "Focal Loss for Dense Object Detection" (Lin et al., 2017), section 3."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ....distributed import mean_count
from ....ops import BoxCoder, sigmoid_focal_loss
from ...matcher import BETWEEN, Matcher


@dataclass(frozen=True)
class RetinaNetLoss:
    """Focal loss of the classes over all anchors, smooth L1 of the deltas of the matched ones.

    Args:
        matcher: anchors to ground truth.
        box_coder: meaning of the deltas.
        alpha: weight of what is there, 1 - alpha of what is not.
        gamma: the focusing exponent.
        beta: where smooth L1 turns linear.
        regress_norm: the loss of the deltas is divided by it.
    """

    matcher: Matcher
    box_coder: BoxCoder
    alpha: float
    gamma: float
    beta: float
    regress_norm: float

    def __call__(
        self,
        logits: Sequence[Tensor],
        deltas: Sequence[Tensor],
        anchors: Tensor,
        visible: list[Tensor],
        targets: list[dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """The two losses, per matched anchor of the batch.

        Args:
            logits: per level ``[N, A, C]``.
            deltas: per level ``[N, A, 4]``.
            anchors: of all levels ``[sum of A, 4]``.
            visible: per image bool ``[sum of A]``: the anchors that take part.
            targets: per image ``boxes`` ``[G, 4]`` and ``labels`` ``[G]``, from 1.
        """
        labels, positive, wanted = [], [], []
        for i, target in enumerate(targets):
            boxes = target["boxes"].to(anchors)
            match = self.matcher(boxes, anchors)
            match = torch.where(visible[i], match, BETWEEN)
            matched = torch.nonzero(match >= 0).squeeze(1)
            truth = match[matched]
            # 0 for background, -1 for what takes no part.
            label = -(match == BETWEEN).long()
            label[matched] = target["labels"][truth]
            labels.append(label)
            positive.append(matched + i * anchors.size(0))
            wanted.append(self.box_coder.encode(boxes[truth], anchors[matched]))
        found = torch.cat(positive)
        regression = F.smooth_l1_loss(
            torch.cat(list(deltas), 1).flatten(0, 1)[found],
            torch.cat(wanted),
            beta=self.beta,
            reduction="sum",
        )
        classification = self._classification(logits, torch.stack(labels))
        return {
            # The number of images keeps it finite where nothing is matched, as in the family.
            "loss_retina_cls": classification / mean_count(found.numel() + len(targets), anchors),
            "loss_retina_reg": regression
            / (mean_count(found.numel(), anchors) * self.regress_norm),
        }

    def _classification(self, logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        """A sum over the levels, whose logits are too large to be put together."""
        total = logits[0].new_zeros(())
        sizes = [level.size(1) for level in logits]
        for level, label in zip(logits, labels.split(sizes, dim=1), strict=True):
            taking_part = label >= 0
            level, label = level[taking_part], label[taking_part]
            target = torch.zeros_like(level)
            row = torch.nonzero(label).squeeze(1)
            target[row, label[row] - 1] = 1
            total = total + sigmoid_focal_loss(level, target, self.alpha, self.gamma, "sum")
        return total
