"""Selection of detections from class logits and deltas of all anchors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ....ops import BoxCoder, remove_small_boxes
from ...convention import Convention
from ...nms import limited_nms
from ...symbolic import sym_min


@dataclass(frozen=True)
class RetinaNetPostProcessor:
    """Decodes the best boxes of each level, applies NMS within each class, and keeps the best.

    "Focal Loss for Dense Object Detection" (Lin et al., 2017), section 4.1, inference.
    """

    box_coder: BoxCoder
    score_thresh: float
    pre_nms_top_n: int
    nms_thresh: float
    detections_per_img: int
    convention: Convention = Convention()

    def __call__(
        self,
        logits: Sequence[Tensor],
        deltas: Sequence[Tensor],
        anchors: Sequence[Tensor],
        image_sizes: Sequence[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        """Returns per image ``boxes`` ``[n, 4]``, ``labels`` from 1 and ``scores``, best first.

        Args:
            logits: per level ``[N, A, C]``.
            deltas: per level ``[N, A, 4]``.
            anchors: per level ``[A, 4]``.
            image_sizes: (height, width) of each image.
        """
        detections = []
        for i, size in enumerate(image_sizes):
            levels = [
                self._level(logit[i], delta[i], anchor)
                for logit, delta, anchor in zip(logits, deltas, anchors, strict=True)
            ]
            boxes, scores, labels = (torch.cat(part) for part in zip(*levels, strict=True))
            detections.append(
                self._suppress(self.convention.clip_dense(boxes, size), scores, labels)
            )
        return detections

    def _level(self, logits: Tensor, deltas: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        candidates = self._candidate_anchors(logits)
        scores = logits[candidates].sigmoid().flatten()
        # NaN fails the comparison.
        index = torch.nonzero(scores > self.score_thresh).squeeze(1)
        scores, best = scores[index].topk(sym_min(self.pre_nms_top_n, index.size(0)))
        index = index[best]
        anchor = candidates[index.div(logits.size(1), rounding_mode="floor")]
        boxes = self.box_coder.decode(deltas[anchor], anchors[anchor])
        return boxes, scores, index % logits.size(1) + 1

    def _candidate_anchors(self, logits: Tensor) -> Tensor:
        """Returns the anchors that may have one of the best scores.

        The best k of all scores belong to the k anchors with the highest best class. There are
        millions of scores; those of the other anchors need not be computed.
        """
        best = logits.amax(1)
        count = self.pre_nms_top_n
        # topk sorts NaN first: each NaN needs a further place.
        if not is_compiling():
            count += int(best.isnan().sum())
        return best.topk(sym_min(count, best.size(0)), sorted=False).indices.sort().values

    def _suppress(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
        # Removes only boxes with NaN.
        is_valid = remove_small_boxes(boxes, 0)
        boxes, scores, labels = boxes[is_valid], scores[is_valid], labels[is_valid]
        keep = limited_nms(boxes, scores, labels, self.nms_thresh, self.detections_per_img)
        return {"boxes": boxes[keep], "labels": labels[keep], "scores": scores[keep]}
