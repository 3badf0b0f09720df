"""Inputs of overlap ops, by the kind of box."""

from functools import partial

import reference
import torch
from hypothesis import strategies as st
from overlap import Inputs
from reference_polygons import random_quads, random_sets
from reference_rotated import random_boxes as random_rotated

BOTH = ("boxes1", "boxes2")


def perturbed(generator, elements, count, distances, small_fraction=0.7):
    """Returns ``count`` of the elements, most of them moved a little and the others further."""
    chosen = elements[torch.arange(count) % max(1, len(elements))]
    noise = torch.randn(count, elements.size(1), generator=generator, dtype=torch.double)
    is_far = torch.rand(count, 1, generator=generator) > small_fraction
    return chosen + noise * torch.tensor(distances, dtype=torch.double) * (1 + 9 * is_far)


def _boxes(generator, n, m):
    first = reference.random_boxes(max(n, 1), 100.0, generator, torch.double)
    x, y, width, height = perturbed(generator, _to_xywh(first), m, [4, 4, 3, 3]).unbind(1)
    width, height = width.abs() + 1, height.abs() + 1
    return first[:n], torch.stack([x, y, x + width, y + height], 1)


def _to_xywh(boxes):
    return torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)


def _grid(generator, n, m):
    """Returns boxes that overlap, touch, coincide with, contain or miss each other."""
    corner = torch.randint(0, 5, (n + m, 2), generator=generator)
    side = torch.randint(1, 5, (n + m, 2), generator=generator)
    boxes = torch.cat([corner, corner + side], 1).double()
    return boxes[:n], boxes[n:]


_SIDE = st.integers(1, 9)
_BOX = st.tuples(st.integers(0, 9), st.integers(0, 9), _SIDE, _SIDE).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
_DEGENERATE_BOXES = [
    [3, 3, 3, 3],  # a point
    [1, 2, 5, 2],  # lines
    [2, 1, 2, 5],
    [4, 1, 1, 4],  # inverted on one axis, and on the other
    [1, 4, 4, 1],
    [4, 4, 1, 1],  # inverted on both axes: the product of its sides is positive
]
BOXES = Inputs(
    BOTH,
    ((4,), (4,)),
    smooth={"near": _boxes},
    tied={"grid": _grid},
    degenerate=(_DEGENERATE_BOXES, _DEGENERATE_BOXES),
    strategies=(_BOX, _BOX),
)


def _rotated(generator, n, m, kind):
    first = random_rotated(generator, max(n, 1), torch.double, kind)
    second = perturbed(generator, first, m, [8, 8, 4, 4, 40], 0.9)
    second[:, 2:4] = second[:, 2:4].abs() + 0.1
    return first[:n], second


def _split(generator, n, m, kind):
    boxes = random_rotated(generator, n + m, torch.double, kind)
    return boxes[:n], boxes[n:]


_ROTATED = st.tuples(
    *[st.floats(-20, 20)] * 2, *[st.floats(0.1, 30)] * 2, st.floats(-400, 400)
) | st.tuples(*[st.integers(-9, 9)] * 2, *[_SIDE] * 2, st.integers(-9, 9).map(lambda x: 45 * x))
_DEGENERATE_ROTATED = [
    [5, 5, 0, 10, 0],
    [5, 5, 10, 0, 30],
    [5, 5, -10, 10, 0],
    [5, 5, -10, -10, 0],
    [5, 5, 0, 0, 0],
]
ROTATED = Inputs(
    BOTH,
    ((5,), (5,)),
    smooth={kind: partial(_rotated, kind=kind) for kind in ("mixed", "thin", "sizes")},
    tied={kind: partial(_split, kind=kind) for kind in ("near copies", "gridded")},
    degenerate=(_DEGENERATE_ROTATED, _DEGENERATE_ROTATED),
    strategies=(_ROTATED, _ROTATED),
)


def _quads(generator, n, m, kind):
    quads = random_quads(generator, n + m, kind)
    return quads[:n], quads[n:]


def _grid_quads(generator, n, m):
    quads = (random_quads(generator, n + m, "concave") / 10).round() * 10
    return quads[:n], quads[n:]


_QUAD = st.tuples(*[st.integers(0, 9)] * 8)
_DEGENERATE_QUADS = [[1, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3, 3, 1, 1]]
QUADS = Inputs(
    BOTH,
    ((8,), (8,)),
    smooth={kind: partial(_quads, kind=kind) for kind in ("convex", "concave", "any")},
    tied={"gridded": _grid_quads},
    degenerate=(_DEGENERATE_QUADS, _DEGENERATE_QUADS),
    strategies=(_QUAD, _QUAD),
)


def _sets(generator, n, m, sets, quads):
    """Returns sets of nine points, and quadrilaterals of which most are near a set."""
    points = random_sets(generator, max(n, 1), sets)
    polygons = random_quads(generator, m, quads).view(m, 4, 2)
    near = points.view(-1, 9, 2).mean(1)[torch.arange(m) % len(points)] - polygons.mean(1)
    near[: m // 4] = 0
    return points[:n], (polygons + 0.7 * near[:, None]).view(m, 8)


def _points_with_hull(quads):
    """Returns sets of nine points whose hull is the quadrilateral: corners and points within."""
    corners = quads.view(-1, 4, 2)
    centre = corners.mean(1, keepdim=True)
    return torch.cat([corners, centre, (corners + centre) / 2], 1).flatten(1)


def _star(numbers):
    """Returns corners in four directions from a centre, which may be concave."""
    x, y, right, down, left, up, is_clockwise = numbers
    corners = [(x + right, y), (x, y + down), (x - left, y), (x, y - up)]
    return [coordinate for corner in corners[:: 1 if is_clockwise else -1] for coordinate in corner]


_SIMPLE_QUAD = st.tuples(*[st.integers(0, 9)] * 2, *[_SIDE] * 4, st.booleans()).map(_star)
_SETS = {
    f"{sets}, {quads}": partial(_sets, sets=sets, quads=quads)
    for sets in ("spread", "gridded")
    for quads in ("convex", "concave")
}
POINT_SETS = Inputs(
    ("pointsets", "polygons"),
    ((18,), (8,)),
    smooth={kind: make for kind, make in _SETS.items() if "spread" in kind},
    tied={kind: make for kind, make in _SETS.items() if "gridded" in kind},
    degenerate=([[3, 4] * 9, [1, 1, 2, 2, 3, 3] * 3], _DEGENERATE_QUADS),
    strategies=(st.tuples(*[st.integers(0, 9)] * 18), _SIMPLE_QUAD),
    to_first=_points_with_hull,
)

HEIGHT, WIDTH = 5, 29


def _masks(generator, n, m):
    masks = torch.rand(n + m, HEIGHT, WIDTH, generator=generator) < 0.5
    return masks[:n], masks[n:]


def _masks_of_rows(generator, n, m):
    """Returns masks of which some are empty or full, or set only in some rows."""
    masks = torch.cat(_masks(generator, n, m))
    masks[1::5, : HEIGHT // 2] = False
    masks[2::5, HEIGHT // 3 :] = False
    masks[7::9], masks[8::9] = False, True
    return masks[:n], masks[n:]


_EMPTY = torch.zeros(2, HEIGHT, WIDTH).tolist()
_MASK = st.sets(st.integers(0, HEIGHT * WIDTH - 1), max_size=8).map(
    lambda pixels: [[y * WIDTH + x in pixels for x in range(WIDTH)] for y in range(HEIGHT)]
)
MASKS = Inputs(
    ("masks1", "masks2"),
    ((HEIGHT, WIDTH), (HEIGHT, WIDTH)),
    smooth={"random": _masks},
    tied={"some rows": _masks_of_rows},
    degenerate=(_EMPTY, _EMPTY),
    strategies=(_MASK, _MASK),
    dtypes=(torch.bool, torch.uint8),
)
