"""From objectness and deltas to proposals."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...ops import BoxCoder, batched_nms, clip_boxes_to_image, remove_small_boxes


@dataclass(frozen=True)
class ProposalSelector:
    """The best anchors of each level, decoded, cleaned and thinned; see :class:`RPN`."""

    box_coder: BoxCoder
    pre_nms_top_n: int
    post_nms_top_n: int
    fpn_post_nms_top_n: int
    per_batch: bool
    nms_thresh: float
    min_size: float

    def __call__(
        self,
        logits: Sequence[Tensor],
        deltas: Sequence[Tensor],
        anchors: Sequence[Tensor],
        image_sizes: Sequence[tuple[int, int]],
    ) -> list[tuple[Tensor, Tensor]]:
        """Per level ``[N, A]``, ``[N, A, 4]`` and ``[A, 4]``, to per image ``[n, 4]`` and ``[n]``.

        Boxes and their logits, best first. The counts over all levels are for several.
        """
        parts = []
        for level, (score, delta, anchor) in enumerate(zip(logits, deltas, anchors, strict=True)):
            # Only what can be chosen is decoded.
            score, index = score.topk(min(self.pre_nms_top_n, score.size(1)), dim=1)
            delta = delta.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
            parts.append((score, delta, anchor[index], torch.full_like(index, level)))
        score, delta, anchor, level_of = (torch.cat(p, dim=1) for p in zip(*parts, strict=True))
        boxes = self.box_coder.decode(delta.flatten(0, 1), anchor.flatten(0, 1))
        boxes = boxes.view(*score.shape, 4)
        chosen = [
            self._thin(boxes[i], score[i], level_of[i], size) for i, size in enumerate(image_sizes)
        ]
        if len(logits) == 1:
            return chosen
        if self.per_batch:
            return _best_of_batch(chosen, self.fpn_post_nms_top_n)
        top = slice(self.fpn_post_nms_top_n)
        return [(boxes[top], scores[top]) for boxes, scores in chosen]

    def _thin(
        self, boxes: Tensor, scores: Tensor, levels: Tensor, image_size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """One image: boxes and scores that stay, best first."""
        boxes = clip_boxes_to_image(boxes, image_size)
        # A NaN side is not at least min_size: such a box goes too.
        keep = remove_small_boxes(boxes, self.min_size)
        boxes, scores, levels = boxes[keep], scores[keep], levels[keep]
        keep = batched_nms(boxes, scores, levels, self.nms_thresh)
        # Best first: a box's rank on its level is how many of that level came before.
        on_level = levels[keep].unsqueeze(1) == levels.unique()
        rank = on_level.cumsum(0)[on_level]
        keep = keep[rank <= self.post_nms_top_n]
        return boxes[keep], scores[keep]


def _best_of_batch(chosen: list[tuple[Tensor, Tensor]], count: int) -> list[tuple[Tensor, Tensor]]:
    scores = torch.cat([s for _, s in chosen])
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[scores.topk(min(count, scores.numel())).indices] = True
    parts = keep.split([s.numel() for _, s in chosen])
    return [(boxes[k], scores[k]) for (boxes, scores), k in zip(chosen, parts, strict=True)]
