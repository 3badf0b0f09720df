"""Selection of proposals from objectness and deltas."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...distributed import best_indices
from ...ops import BoxCoder
from ..convention import Convention
from ..nms import first_rows, limited_nms
from ..symbolic import sym_min


@dataclass(frozen=True)
class ProposalSelector:
    """Decodes the best anchors of each level, filters them and applies NMS; see :class:`RPN`."""

    box_coder: BoxCoder
    pre_nms_top_n: int
    post_nms_top_n: int
    fpn_post_nms_top_n: int
    per_batch: bool
    nms_thresh: float
    min_size: float
    convention: Convention = Convention()

    def __call__(
        self,
        logits: Sequence[Tensor],
        deltas: Sequence[Tensor],
        anchors: Sequence[Tensor],
        image_sizes: Sequence[tuple[int, int]],
    ) -> list[tuple[Tensor, Tensor]]:
        """Returns per image boxes ``[n, 4]`` and their logits ``[n]``, best first.

        The inputs are ``[N, A]``, ``[N, A, 4]`` and ``[A, 4]`` per level. The limit over all
        levels applies only if there is more than one.
        """
        parts = []
        for level, (score, delta, anchor) in enumerate(zip(logits, deltas, anchors, strict=True)):
            # Decodes only boxes that can be chosen.
            score, index = score.topk(sym_min(self.pre_nms_top_n, score.size(1)), dim=1)
            delta = delta.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
            parts.append((score, delta, anchor[index], torch.full_like(index, level)))
        score, delta, anchor, levels = (torch.cat(p, dim=1) for p in zip(*parts, strict=True))
        boxes = self.box_coder.decode(delta.flatten(0, 1), anchor.flatten(0, 1))
        boxes = boxes.view(*score.shape, 4)
        multiple_levels = len(logits) > 1
        limit = self.fpn_post_nms_top_n if multiple_levels and not self.per_batch else None
        chosen = [
            self._suppress(boxes[i], score[i], levels[i], len(logits), size, limit)
            for i, size in enumerate(image_sizes)
        ]
        if multiple_levels and self.per_batch:
            return _best_of_batch(chosen, self.fpn_post_nms_top_n)
        return chosen

    def _suppress(
        self,
        boxes: Tensor,
        scores: Tensor,
        levels: Tensor,
        count: int,
        image_size: tuple[int, int],
        limit: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns up to ``limit`` boxes and scores of an image of ``count`` levels, best first."""
        boxes = self.convention.clip(boxes, image_size)
        keep = self.convention.select_large(boxes, self.min_size)
        boxes, scores, levels = boxes[keep], scores[keep], levels[keep]
        keep = limited_nms(boxes, scores, levels, self.nms_thresh)
        # In maskrcnn-benchmark, the limit per level is part of NMS: without NMS, there is none.
        if self.nms_thresh > 0 and self.post_nms_top_n > 0:
            # Boxes are sorted: the rank of one is the number of boxes so far on its level.
            level = levels[keep].unsqueeze(1)
            on_level = level == torch.arange(count, device=level.device)
            rank = on_level.cumsum(0).gather(1, level).squeeze(1)
            keep = keep[rank <= self.post_nms_top_n]
        keep = keep if limit is None else first_rows(keep, limit)
        return boxes[keep], scores[keep]


def _best_of_batch(chosen: list[tuple[Tensor, Tensor]], count: int) -> list[tuple[Tensor, Tensor]]:
    scores = torch.cat([s for _, s in chosen])
    keep = torch.zeros_like(scores, dtype=torch.bool)
    keep[best_indices(scores, count)] = True
    parts = keep.split([s.numel() for _, s in chosen])
    return [(boxes[k], scores[k]) for (boxes, scores), k in zip(chosen, parts, strict=True)]
