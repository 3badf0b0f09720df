# SPDX-License-Identifier: MIT
"""Benchmarks of soft_nms and matrix_nms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, clustered, plain_iou

OPS = ("soft_nms", "matrix_nms")

BYTES_PER_BOX = 4 * 4 + 4


def plain_soft_nms(
    boxes: Tensor, scores: Tensor, threshold: float, sigma: float, min_score: float, method: str
) -> tuple[Tensor, Tensor]:
    """Computes Soft-NMS in plain PyTorch."""
    index = torch.arange(len(boxes), device=boxes.device)
    keep, kept = [], []
    while len(index):
        best = scores.argmax()
        keep.append(index[best])
        kept.append(scores[best])
        iou = plain_iou(boxes[best : best + 1], boxes)[0]
        if method == "gaussian":
            scores = scores * torch.exp(-iou.square() / sigma)
        else:
            scores = torch.where(iou > threshold, scores * (1 - iou), scores)
        left = scores >= min_score
        left[best] = False
        boxes, scores, index = boxes[left], scores[left], index[left]
    return torch.stack(keep), torch.stack(kept)


def plain_matrix_nms(
    boxes: Tensor, scores: Tensor, sigma: float, min_score: float
) -> tuple[Tensor, Tensor]:
    """Computes Gaussian matrix NMS with the matrices of the paper."""
    scores, order = scores.sort(descending=True, stable=True)
    iou = plain_iou(boxes[order], boxes[order]).triu(1)
    max_iou = iou.amax(0)[:, None]
    decay = (torch.exp(-sigma * iou.square()) / torch.exp(-sigma * max_iou.square())).amin(0)
    scores = scores * decay
    left = scores >= min_score
    scores, rank = scores[left].sort(descending=True, stable=True)
    return order[left][rank], scores


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for count in (1000, 5000):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        for method in ("linear", "gaussian"):
            yield Case(
                "soft_nms",
                f"{count:,} clustered, {method}",
                lambda: ops.soft_nms(boxes, scores, method=method),  # noqa: B023
                None,
                lambda: plain_soft_nms(boxes, scores, 0.3, 0.5, 1e-3, method),  # noqa: B023
                bytes=count * BYTES_PER_BOX,
                quick=count == 1000 and method == "linear",
            )
    for count in (2000, 10_000):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        plain = count <= 2000  # larger inputs would need several matrices of all overlaps
        yield Case(
            "matrix_nms",
            f"{count:,} clustered, gaussian",
            lambda: ops.matrix_nms(boxes, scores),  # noqa: B023
            None,
            (lambda: plain_matrix_nms(boxes, scores, 2.0, 1e-3)) if plain else None,  # noqa: B023
            bytes=count * BYTES_PER_BOX,
            quick=count == 2000,
        )
    labels = torch.randint(0, 80, (count,), generator=generator).to(device)
    yield Case(
        "matrix_nms",
        f"{count:,} x 80 classes, linear",
        lambda: ops.matrix_nms(boxes, scores, labels, method="linear"),
        bytes=count * (BYTES_PER_BOX + 8),
    )
