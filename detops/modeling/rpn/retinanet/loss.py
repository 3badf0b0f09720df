"""Loss of RetinaNet: "Focal Loss for Dense Object Detection" (Lin et al., 2017), section 3."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ....distributed import mean_count
from ....ops import BoxCoder, sigmoid_focal_loss
from ...matcher import IGNORED, Matcher


@dataclass(frozen=True)
class RetinaNetLoss:
    """Focal loss of the classes over all anchors, and smooth L1 of the deltas of matched anchors.

    Args:
        matcher: assigns ground truth to anchors.
        box_coder: encodes the deltas.
        alpha: weight of the true class; other classes have weight 1 - alpha.
        gamma: the focusing exponent.
        beta: error at which smooth L1 becomes linear.
        regress_norm: divisor of the loss of the deltas.
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
        """Returns the two losses, divided by the number of matched anchors of the batch.

        Args:
            logits: per level ``[N, A, C]``.
            deltas: per level ``[N, A, 4]``.
            anchors: of all levels ``[sum of A, 4]``.
            visible: per image bool ``[sum of A]``: the anchors that are used.
            targets: per image ``boxes`` ``[G, 4]`` and ``labels`` ``[G]``, from 1.
        """
        labels, positive, target_deltas = [], [], []
        for i, target in enumerate(targets):
            boxes = target["boxes"].to(anchors)
            match = self.matcher(boxes, anchors)
            match = torch.where(visible[i], match, IGNORED)
            matched = torch.nonzero(match >= 0).squeeze(1)
            truth = match[matched]
            # 0 for background, -1 for ignored anchors.
            label = -(match == IGNORED).long()
            label[matched] = target["labels"][truth]
            labels.append(label)
            positive.append(matched + i * anchors.size(0))
            target_deltas.append(self.box_coder.encode(boxes[truth], anchors[matched]))
        positives = torch.cat(positive)
        regression = F.smooth_l1_loss(
            torch.cat(list(deltas), 1).flatten(0, 1)[positives],
            torch.cat(target_deltas),
            beta=self.beta,
            reduction="sum",
        )
        classification = self._classification(logits, torch.stack(labels))
        return {
            # Adding the number of images keeps it finite without matches, as in maskrcnn-benchmark.
            "loss_retina_cls": classification
            / mean_count(positives.numel() + len(targets), anchors),
            "loss_retina_reg": regression
            / (mean_count(positives.numel(), anchors) * self.regress_norm),
        }

    def _classification(self, logits: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Sums the loss level by level: the logits are too large to be concatenated."""
        total = logits[0].new_zeros(())
        sizes = [level.size(1) for level in logits]
        for level, label in zip(logits, labels.split(sizes, dim=1), strict=True):
            is_used = label >= 0
            level, label = level[is_used], label[is_used]
            target = torch.zeros_like(level)
            row = torch.nonzero(label).squeeze(1)
            target[row, label[row] - 1] = 1
            total = total + sigmoid_focal_loss(level, target, self.alpha, self.gamma, "sum")
        return total
