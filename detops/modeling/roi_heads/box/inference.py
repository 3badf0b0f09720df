"""Selection of detections from class scores and deltas."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....ops import BoxCoder, remove_small_boxes
from ...convention import Convention
from ...nms import limited_nms


class Candidates(NamedTuple):
    """``boxes`` ``[L, C - 1, 4]`` and ``scores`` of each proposal and class except background."""

    boxes: Tensor
    scores: Tensor


@dataclass(frozen=True)
class BoxPostProcessor:
    """Decodes, thresholds, suppresses within each class, and keeps the best."""

    box_coder: BoxCoder
    score_thresh: float
    nms_thresh: float
    detections_per_img: int
    convention: Convention = Convention()

    def __call__(
        self,
        logits: Tensor,
        deltas: Tensor,
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        extra_candidates: list[list[Candidates]] | None = None,
    ) -> list[dict[str, Tensor]]:
        """Returns per image ``boxes`` ``[n, 4]``, ``labels`` from 1 and ``scores``, best first.

        Args:
            logits: ``[K, C]``, proposals of all images in order.
            deltas: ``[K, 4 C]``, or ``[K, 8]`` if all classes share them.
            proposals: per image ``[L, 4]``.
            image_sizes: (height, width) of each image.
            extra_candidates: per image more candidates, which go through NMS together with its own.
        """
        candidates = self.candidates(logits, deltas, proposals)
        if extra_candidates is not None:
            candidates = [
                Candidates(*map(torch.cat, zip(image_candidates, *more_candidates, strict=True)))
                for image_candidates, more_candidates in zip(
                    candidates, extra_candidates, strict=True
                )
            ]
        return [
            self._select(*image_candidates, size)
            for image_candidates, size in zip(candidates, image_sizes, strict=True)
        ]

    def candidates(
        self, logits: Tensor, deltas: Tensor, proposals: list[Tensor]
    ) -> list[Candidates]:
        """Returns per image all boxes to choose from, before clipping and NMS."""
        counts = [p.size(0) for p in proposals]
        # unflatten, not view: with no proposals a -1 would be ambiguous.
        boxes = self.box_coder.decode(deltas, torch.cat(proposals))
        boxes = boxes.unflatten(1, (boxes.size(1) // 4, 4))
        # Drops the columns of the background; every class uses shared deltas.
        boxes = boxes[:, 1:].expand(-1, logits.size(1) - 1, -1)
        scores = logits.softmax(dim=1)[:, 1:]
        return list(map(Candidates, boxes.split(counts), scores.split(counts)))

    def _select(self, boxes: Tensor, scores: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        # NaN scores fail the comparison. remove_small_boxes drops NaN boxes.
        proposal, cls = torch.nonzero(scores > self.score_thresh, as_tuple=True)
        chosen = self.convention.clip(boxes[proposal, cls], size)
        score, label = scores[proposal, cls], cls + 1
        is_valid = remove_small_boxes(chosen, self.convention.min_side)
        chosen, score, label = chosen[is_valid], score[is_valid], label[is_valid]
        keep = limited_nms(chosen, score, label, self.nms_thresh, self.detections_per_img)
        return {"boxes": chosen[keep], "labels": label[keep], "scores": score[keep]}
