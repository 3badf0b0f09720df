# SPDX-License-Identifier: MIT
"""Benchmarks of linear_assignment against SciPy's solver, which matchers call once per image."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, plain_iou, uniform

OPS = ("linear_assignment",)

# Images, queries and objects: DETR and Deformable DETR, DINO, as many objects as queries, and small
# problems.
SIZES = ((16, 300, 50), (16, 900, 100), (2, 100, 100), (1, 100, 7), (1, 10, 3))


def by_scipy(cost: Tensor) -> Tensor:
    """Returns the object of each query, or -1."""
    from scipy.optimize import linear_sum_assignment

    objects = torch.full(cost.shape[:2], -1)
    for assignment, matrix in zip(objects, cost.cpu(), strict=True):
        rows, columns = linear_sum_assignment(matrix)
        assignment[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return objects


def pairs_by_scipy(cost: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the queries and objects of each image, in the format of matchers."""
    from scipy.optimize import linear_sum_assignment

    pairs = [linear_sum_assignment(matrix) for matrix in cost.cpu()]
    return [(torch.as_tensor(rows), torch.as_tensor(columns)) for rows, columns in pairs]


def matcher_costs(
    generator: torch.Generator, images: int, queries: int, objects: int, trained: bool
) -> Tensor:
    """Returns matching costs as in DETR: class, distance and overlap terms.

    In a trained detector each object has a few queries close to it.
    """
    costs = []
    for _ in range(images):
        targets = uniform(generator, objects)[0]
        found = uniform(generator, queries)[0]
        if trained:
            nearest = torch.randint(objects, (queries,), generator=generator)
            found = targets[nearest] + 8 * torch.randn(queries, 4, generator=generator)
        distance = torch.cdist(found, targets, p=1) / 1000
        classes = torch.rand(queries, objects, generator=generator)
        costs.append(5 * distance - classes - 2 * plain_iou(found, targets))
    return torch.stack(costs)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    try:
        import scipy
    except ImportError:
        scipy = None
    for images, queries, objects in SIZES:
        for kind in ("random", "untrained", "trained"):
            if kind == "random":
                cost = torch.rand(images, queries, objects, generator=generator)
            else:
                cost = matcher_costs(generator, images, queries, objects, kind == "trained")
            cost = cost.to(device)
            yield Case(
                "linear_assignment against SciPy",
                f"{images} x {queries} x {objects}, {kind}",
                lambda: ops.linear_assignment(cost),  # noqa: B023
                pytorch=scipy and (lambda: pairs_by_scipy(cost)),  # noqa: B023
                bytes=4 * cost.numel() + 8 * images * queries,
                quick=queries == 300 and kind == "untrained",
            )
