# SPDX-License-Identifier: MIT
"""Benchmarks of weighted_box_fusion against the paper's algorithm in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, clustered, plain_iou

OPS = ("weighted_box_fusion",)


def plain_weighted_box_fusion(
    boxes: list[Tensor], scores: list[Tensor], labels: list[Tensor], threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Fuses one box at a time against all fused boxes of its label."""
    models = len(boxes)
    box, score, label = torch.cat(boxes), torch.cat(scores), torch.cat(labels)
    fused, confidences, classes = [], [], []
    for c in label.unique():
        indices = (label == c).nonzero()[:, 0]
        indices = indices[score[indices].argsort(descending=True, stable=True)]
        means = box.new_empty(len(indices), 4)
        sums, total = means.clone(), score.new_zeros(len(indices))
        members: list[int] = []
        for i in indices:
            k = len(members)
            if k:
                best, at = plain_iou(box[i : i + 1], means[:k])[0].max(0)
                k = int(at) if best > threshold else k
            if k == len(members):
                members.append(0)
                sums[k] = 0
            sums[k] += score[i] * box[i]
            total[k] += score[i]
            members[k] += 1
            means[k] = sums[k] / total[k]
        n = torch.tensor(members, device=box.device)
        fused.append(means[: len(n)])
        confidences.append(total[: len(n)] / n * n.clamp(max=models) / models)
        classes.append(c.expand(len(n)))
    result = torch.cat(confidences)
    order = result.argsort(descending=True, stable=True)
    return torch.cat(fused)[order], result[order], torch.cat(classes)[order]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for models, count, labels in ((2, 10, 2), (3, 300, 80), (5, 1000, 1), (8, 5000, 80)):
        boxes, scores = clustered(generator, models * count)
        label = torch.randint(labels, (len(boxes),), generator=generator)
        box, score, c = (list(t.to(device).chunk(models)) for t in (boxes, scores, label))
        yield Case(
            "weighted_box_fusion",
            f"{models} models, {count:,} boxes each, {labels} classes",
            lambda: ops.weighted_box_fusion(box, score, c),  # noqa: B023
            pytorch=lambda: plain_weighted_box_fusion(box, score, c, 0.55),  # noqa: B023
            bytes=models * count * (16 + 4 + 8),
            quick=models == 3,
        )
