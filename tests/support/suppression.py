"""The contract of suppression ops: how a ``cases_<op>.py`` describes an op to the contract tests.

``CASES`` in such a file lists a `Suppression` for each way to call the op. The contract tests find
the files of their folder, so a new op gets all these tests from its file alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import torch
from contracts import load_cases
from torch import Tensor

import detops

Outputs = tuple[Tensor, ...]


class Detections(NamedTuple):
    """N boxes of any kind, their scores ``[N]`` and labels ``[N]``."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def to(self, dtype: torch.dtype, device: str = "cpu") -> "Detections":
        """Converts floating tensors; masks and labels keep their dtype."""
        return Detections(
            *(t.to(device, dtype if t.is_floating_point() else t.dtype) for t in self)
        )

    def rows(self, index: Any) -> "Detections":
        return Detections(*(t[index] for t in self))


@dataclass(frozen=True, eq=False)
class Boxes:
    """A kind of box, with inputs that reach its corner cases."""

    argument: str  # the name in errors
    shape: str  # the shape in errors
    kinds: Mapping[str, Callable[[np.random.Generator, int], Tensor]]  # random boxes
    disjoint: Callable[[int], Tensor]  # boxes without overlap
    pair_with_iou_third: Tensor
    malformed: Tensor  # boxes that overlap no box: NaN, infinite, flat
    thresholds: tuple[float, ...]
    counts: tuple[int, ...] = (0, 1, 2, 17, 60)
    rounding: torch.dtype | None = None  # dtype of the IoU, by default that of the boxes

    def random(self, kind: str, count: int, scores: str = "distinct", seed: int = 0) -> Detections:
        rng = np.random.default_rng((seed, count))
        boxes = self.kinds[kind](rng, count)
        return Detections(boxes, random_scores(rng, count, scores), random_labels(rng, count))


@dataclass(frozen=True, eq=False)
class Suppression:
    """One way to call an op.

    ``call`` and ``oracle`` take boxes, scores, labels, a threshold and options by name.
    """

    name: str  # the op, then what distinguishes this call
    call: Callable[..., Tensor | Outputs]
    oracle: Callable[..., Tensor | Outputs]  # slow, obvious and independent of the kernels
    boxes: Boxes
    options: tuple[Mapping[str, Any], ...] = ({},)  # the op's own arguments, for both functions
    kept: Callable[..., Tensor] = lambda keep, *_: keep  # outputs to indices of kept boxes
    rescores: bool = False  # the second output has changed scores; NaN scores are dropped
    min_score: float = math.nan  # an op that rescores drops lower scores
    tolerance: Mapping[torch.dtype, float] = field(default_factory=dict)  # none: the same bits
    separates_labels: bool = False  # boxes with different labels do not suppress each other
    limits: tuple[str, ...] = ()  # of score_threshold and max_output
    parallel_count: int = 3000  # boxes, enough for several threads
    exceptions: Mapping[str, str] = field(default_factory=dict)  # contract tests: why not

    @property
    def op(self) -> str:
        return self.name.split(",")[0]

    def outputs(self, detections: Detections, threshold: float, **options: Any) -> Outputs:
        return as_tuple(self.call(*detections, threshold, **options))

    def sample(self, count: int, scores: str = "tied") -> Detections:
        """Returns an input of the most usual kind in float32."""
        return self.boxes.random(next(iter(self.boxes.kinds)), count, scores).to(torch.float32)

    def keep(self, detections: Detections, threshold: float, **options: Any) -> Tensor:
        """Returns the indices of the kept boxes."""
        return self.kept(*self.outputs(detections, threshold, **options))


def same(found: Outputs, expected: Outputs) -> bool:
    """Returns whether dtypes and bits are the same."""
    return len(found) == len(expected) and all(
        one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
        for one, other in zip(found, expected, strict=True)
    )


def as_tuple(found: Tensor | Outputs) -> Outputs:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def call_op(op: str, labelled: bool = False) -> Callable[..., Tensor | Outputs]:
    """Returns the call of an op that takes boxes, scores, maybe labels, and a threshold."""

    def call(
        boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float, **options: Any
    ) -> Any:
        tensors = (boxes, scores, labels) if labelled else (boxes, scores)
        return getattr(detops, op)(*tensors, threshold, **options)

    return call


def greedy(overlaps: Callable[[Tensor], Tensor], labelled: bool = False) -> Callable[..., Tensor]:
    """Returns the oracle of an op that suppresses by the given IoU of all pairs of boxes."""

    def oracle(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> Tensor:
        iou = overlaps(boxes)
        if labelled:
            iou = torch.where(labels[:, None] == labels, iou, math.nan)
        return reference.nms_from_overlaps(scores, iou, threshold)

    return oracle


def random_scores(rng: np.random.Generator, count: int, kind: str) -> Tensor:
    """Returns scores from 0 to 1; `tied` has few values, `odd` also values that are no scores."""
    scores = rng.random(count)
    if kind != "distinct":
        scores = np.round(scores * 10) / 10
    if kind == "odd":
        is_invalid = rng.random(count) < 0.3
        scores[is_invalid] = rng.choice(
            [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0], is_invalid.sum()
        )
    return torch.from_numpy(scores)


def random_labels(rng: np.random.Generator, count: int) -> Tensor:
    """Returns few labels of any size; of many boxes, half have the same label of 80."""
    if count > 1000:
        return torch.from_numpy((rng.random(count) ** 8 * 80).astype("int64"))
    values = [[0, 1, 2], [-(2**63), 0, 2**63 - 1], [-1, 0], [7]][rng.integers(4)]
    return torch.tensor(values)[torch.from_numpy(rng.integers(0, len(values), count))]


@cache
def inputs(boxes: Boxes, dtype: torch.dtype) -> list[tuple[str, Detections]]:
    """Returns each kind and count of boxes, with each kind of scores in turn."""
    found = []
    for i, kind in enumerate(boxes.kinds):
        for j, count in enumerate(boxes.counts):
            scores = ("distinct", "tied", "odd")[(i + j) % 3]
            detections = boxes.random(kind, count, scores, seed=i).to(dtype)
            found.append((f"{count} boxes, {kind}, scores {scores}", detections))
    return found


def each_case(condition: Callable[[Suppression], Any] = lambda case: True) -> Callable[..., Any]:
    """Runs a contract test for the cases that meet the condition, except declared exceptions."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        cases = [
            c for c in load_cases(Suppression) if test.__name__ not in c.exceptions and condition(c)
        ]
        return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)(test)

    return decorate
