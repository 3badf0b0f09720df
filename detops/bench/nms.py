# SPDX-License-Identifier: MIT
"""Benchmarks of nms, nms_padded, nms_match and batched_nms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, clustered, dense, plain_iou, uniform

OPS = ("nms", "nms_padded", "nms_match", "batched_nms")

PLAIN_UP_TO = 2000  # the plain version holds the matrix of all overlaps
BYTES_PER_BOX = 4 * 4 + 4


def plain_nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Computes NMS in plain PyTorch."""
    order = scores.argsort(descending=True, stable=True)
    above = plain_iou(boxes[order], boxes[order]) > threshold
    alive = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for i in range(len(order)):
        if alive[i]:
            alive[i + 1 :] &= ~above[i, i + 1 :]
    return order[alive]


def plain_match(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Returns the kept box that suppresses each box, in plain PyTorch."""
    order = scores.argsort(descending=True, stable=True)
    above = plain_iou(boxes[order], boxes[order]) > threshold
    match = torch.arange(len(order), device=boxes.device)
    for i in range(len(order)):
        if match[i] == i:
            free = match[i + 1 :] == torch.arange(i + 1, len(order), device=boxes.device)
            match[i + 1 :][above[i, i + 1 :] & free] = i
    found = torch.empty_like(order)
    found[order] = order[match]
    return found


def _limited(generator: torch.Generator, device: torch.device) -> Iterator[Case]:
    """Yields NMS with a score threshold and an output limit, against filtering, NMS and slicing."""
    from torchvision.ops import nms

    def theirs(boxes: Tensor, scores: Tensor, min_score: float, max_output: int) -> Tensor:
        index = (scores > min_score).nonzero()[:, 0]
        return index[nms(boxes[index], scores[index], 0.7)][:max_output]

    for count, min_score, max_output in ((10, 0.5, 3), (10_000, 0.5, 100), (100_000, 0.9, 300)):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        yield Case(
            "nms",
            f"{count:,} clustered, 0.7, {max_output} above {min_score}",
            lambda: ops.nms(boxes, scores, 0.7, score_threshold=min_score, max_output=max_output),  # noqa: B023
            lambda: theirs(boxes, scores, min_score, max_output),  # noqa: B023
            bytes=count * BYTES_PER_BOX,
            quick=count == 10_000,
        )
    for count in (10, 2000, 10_000):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        plain = count <= PLAIN_UP_TO
        yield Case(
            "nms_match",
            f"{count:,} clustered, 0.7",
            lambda: ops.nms_match(boxes, scores, 0.7),  # noqa: B023
            pytorch=(lambda: plain_match(boxes, scores, 0.7)) if plain else None,  # noqa: B023
            bytes=count * (BYTES_PER_BOX + 8),
            quick=count == 2000,
        )


def _disjoint(count: int) -> Tensor:
    index = torch.arange(count)
    corner = torch.stack([index % 200, index // 200], 1) * 10.0
    return torch.cat([corner, corner + 8], 1)


def _pathological(generator: torch.Generator, count: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    boxes, scores = clustered(generator, count)
    index = torch.arange(count)
    yield "identical", boxes[:1].expand(count, 4).contiguous(), scores
    yield "disjoint", _disjoint(count), scores
    huge = boxes.clone()
    huge[scores.argmax()] = torch.tensor([-1e4, -1e4, 1e4, 1e4])
    yield "one huge box", huge, scores
    step = index[:, None] * torch.tensor([33.4, 0.0])
    yield "ladder below 0.5", torch.cat([step, step + 100], 1), scores
    broken = boxes.clone()
    draw = torch.rand(count, generator=generator)
    broken[draw < 0.02] = 1e30
    broken[draw > 0.98, 2] = float("nan")
    broken[(draw > 0.6) & (draw < 0.61), 3] = 1e30
    far = (draw > 0.5) & (draw < 0.53)
    broken[far] += 1e6 * torch.rand(int(far.sum()), 1, generator=generator)
    yield "1e30 and NaN mixed in", broken, scores


def _one_class(
    name: str, boxes: Tensor, scores: Tensor, threshold: float, theirs: bool, **more: object
) -> Case:
    from torchvision.ops import nms

    count = len(boxes)
    plain = count <= PLAIN_UP_TO
    return Case(
        "nms",
        f"{count:,} {name}, {threshold}",
        lambda: ops.nms(boxes, scores, threshold),
        (lambda: nms(boxes, scores, threshold)) if theirs else None,
        (lambda: plain_nms(boxes, scores, threshold)) if plain else None,
        bytes=count * BYTES_PER_BOX,
        **more,  # type: ignore[arg-type]
    )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    from torchvision.ops import batched_nms

    generator = torch.Generator().manual_seed(0)
    more = (100_000, 500_000) if device.type == "cuda" else ()
    for count in (10, 100, 1000, 2000, 10_000, 50_000, *more, 1_000_000):
        for threshold in (0.5, 0.7):
            if threshold == 0.5 and count not in (100, 1000):
                continue
            boxes, scores = (t.to(device) for t in clustered(generator, count))
            series = "nms, clustered, 0.7" if threshold == 0.7 else ""
            yield _one_class(
                "clustered", boxes, scores, threshold, count < 500_000,
                quick=count in (1000, 10_000), series=series, size=count,
            )  # fmt: skip
    for count in (10_000, 50_000):
        boxes, scores = (t.to(device) for t in uniform(generator, count))
        yield _one_class("uniform", boxes, scores, 0.5, True)
    boxes, scores = (t.to(device) for t in dense(generator, 100_000))
    yield _one_class("dense detector", boxes, scores, 0.65, True)
    for name, boxes, scores in _pathological(generator, 10_000):
        yield _one_class(name, boxes.to(device), scores.to(device), 0.5, True)

    for count in (25_000, 100_000):
        boxes, scores = (t.to(device) for t in uniform(generator, count))
        image = torch.randint(0, count // 1000, (count, 1), generator=generator)
        for name, test_boxes in (
            ("disjoint", _disjoint(count).to(device)),
            ("uniform", boxes),
            ("uniform, 1,000 a megapixel", boxes + 1000 * image.to(device)),
        ):
            for threshold in (0.0, 1e-40, 0.01):
                theirs = threshold == 0 and count == 25_000
                yield _one_class(name, test_boxes, scores, threshold, theirs)

    for count, max_output in ((1000, 1000), (10_000, 1000), (10_000, 10_000)):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        yield Case(
            "nms_padded",
            f"{count:,} clustered, 0.7, at most {max_output:,}",
            lambda: ops.nms_padded(boxes, scores, 0.7, max_output),  # noqa: B023
            bytes=count * BYTES_PER_BOX,
            quick=count == 1000,
        )

    yield from _limited(torch.Generator().manual_seed(1), device)
    for name, count, classes, threshold in (
        ("900 x 80 classes", 900, 80, 0.5),
        ("8,000 x 80 classes", 8000, 80, 0.5),
        ("100,000 x 80 classes", 100_000, 80, 0.5),
        ("8,756 RPN boxes, 5 levels", 8756, 5, 0.7),
    ):
        boxes, scores = (t.to(device) for t in clustered(generator, count))
        if classes == 5:
            labels = torch.arange(count) // 2000
        else:
            labels = torch.randint(0, classes, (count,), generator=generator)
        labels = labels.to(device)
        yield Case(
            "batched_nms",
            f"{name}, {threshold}",
            lambda: ops.batched_nms(boxes, scores, labels, threshold),  # noqa: B023
            lambda: batched_nms(boxes, scores, labels, threshold),  # noqa: B023
            bytes=count * (BYTES_PER_BOX + 8),
            quick=count == 8000,
        )
