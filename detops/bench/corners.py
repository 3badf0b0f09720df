# SPDX-License-Identifier: MIT
"""The rows of `detops bench corners`: RoI ops far from the usual 256 channels and 500 small RoIs.

The full product of all factors is too large. For each op, every pair of values of two factors
occurs in some row, unless torchvision alone would need too much time or memory for it. This is a
covering design of strength two; :func:`covering` builds it. Rows that a review named are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import torch

OPS = (
    "roi_align",
    "multiscale_roi_align",
    "roi_align_rotated",
    "roi_pool",
    "ps_roi_align",
    "ps_roi_pool",
)
LIMIT_SECONDS = 2.0
LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Corner:
    """One row: an op, and a value for each factor."""

    op: str
    direction: str = "forward"
    layout: str = "NCHW"
    dtype: str = "float32"
    channels: int = 1  # of the output
    rois: int = 1
    extent: str = "half"  # side of a RoI: 2 pixels, half the feature map or all of it
    sampling: int = 2  # 0: adaptive
    size: int = 7  # side of the output
    side: int = 512  # of the feature map
    images: int = 1

    def name(self) -> str:
        """Returns the row's label in the table, without op, direction, layout and dtype."""
        bins = f"{self.size}x{self.size}"
        sampling = f"sampling {self.sampling}" if self.sampling else "adaptive"
        extent = {"2": "of 2 pixels", "half": "of half the map", "whole": "of the whole map"}
        parts = [
            f"{self.channels} channel{'s' * (self.channels > 1)}",
            f"{self.rois:,} RoI{'s' * (self.rois > 1)} {extent[self.extent]}",
            bins,
            *([] if self.op in ("roi_pool", "ps_roi_pool") else [sampling]),
            f"{f'{self.images} x ' * (self.images > 1)}{self.side}x{self.side}",
        ]
        return ", ".join(parts)

    def roi_side(self) -> float:
        """Side of a RoI, in pixels of the feature map."""
        return {"2": 2.0, "half": self.side / 2, "whole": float(self.side)}[self.extent]

    def map_channels(self) -> int:
        """Channels of the feature map: a position-sensitive op has one per output bin."""
        return self.channels * (self.size**2 if self.op.startswith("ps_") else 1)


LEVELS: dict[str, tuple] = {
    "direction": ("forward", "backward"),
    "layout": ("NCHW", "channels_last"),
    "dtype": ("float32", "bfloat16"),
    "channels": (1, 3, 16, 64, 256),
    "rois": (1, 4, 20, 100, 1000),
    "extent": ("2", "half", "whole"),
    "sampling": (2, 0),
    "size": (1, 7, 28, 512),
    "side": (64, 512),
}

EXTRA_ROWS = (
    *(Corner("roi_align", channels=c, rois=20, sampling=s) for c in (1, 3) for s in (2, 0)),
    Corner("roi_align", channels=64, rois=4),
    Corner("roi_align", channels=256, rois=1, side=200),
    Corner("roi_align", channels=256, rois=4, side=200),
    Corner("roi_align", "backward", "channels_last", channels=16, rois=8),
    Corner("roi_pool", channels=3, rois=20),
    Corner("roi_align", rois=1, size=2048),
    Corner("roi_align", "backward", rois=1, size=2048),
    # One plane with little work, which exposes the cost per RoI.
    *(
        Corner("roi_align", direction, rois=1000, extent="2", sampling=sampling, size=1, side=side)
        for direction in ("forward", "backward")
        for sampling, side in ((1, 64), (2, 512), (0, 512))
    ),
    Corner("roi_pool", rois=1000, extent="2", size=1),
    # The mask loss of Mask R-CNN pools one mask per RoI to its target.
    Corner("roi_align", rois=128, sampling=0, size=28, side=1024, images=20, extent="2"),
    Corner("roi_align", rois=128, sampling=0, size=28, side=1024, images=20),
)


def estimate(corner: Corner) -> tuple[float, float]:
    """Estimates lower bounds on torchvision's seconds and bytes, to skip hopeless rows."""
    count = corner.sampling or max(1, -(-int(corner.roi_side()) // corner.size))
    bins = corner.size**2
    samples = bins * count**2
    if corner.op.endswith("roi_pool"):
        samples = max(bins, int(corner.roi_side()) ** 2)
    per_sample = {"forward": 2e-9, "backward": 8e-9}[corner.direction]
    map_size = corner.images * corner.map_channels() * corner.side**2
    pooled = corner.rois * corner.channels * bins
    seconds = corner.rois * samples * (corner.channels * per_sample + 5e-9) + map_size * 2e-10
    table = 32 * samples if "align" in corner.op and not corner.op.startswith("ps_") else 0
    copies = 2 if corner.layout == "channels_last" or corner.dtype != "float32" else 1
    return seconds, 4.0 * copies * (map_size + 2 * pooled) + table


def feasible(corner: Corner) -> bool:
    """Returns whether torchvision can run this row within the limits."""
    if corner.op in ("roi_pool", "ps_roi_pool") and corner.sampling != 2:
        return False  # does not sample: one value stands for both
    if corner.op == "roi_align_rotated":
        if corner.sampling != 2 or corner.dtype != "float32":
            return False  # the baseline composition has a fixed number of samples
        # The baseline holds all samples of all channels at once, several times over.
        samples = corner.rois * 4 * corner.size**2 * (corner.channels + 8)
        if 8.0 * samples > LIMIT_BYTES:
            return False
    seconds, size = estimate(corner)
    return seconds <= LIMIT_SECONDS and size <= LIMIT_BYTES


# Factor values that an op lacks by design.
UNSUPPORTED = {
    ("roi_align_rotated", "dtype bfloat16"): "compared in float32 alone",
    ("roi_align_rotated", "sampling 0"): "compared with a fixed number of samples alone",
    ("roi_pool", "sampling 0"): "no sampling ratio",
    ("ps_roi_pool", "sampling 0"): "no sampling ratio",
    ("ps_roi_align", "size 512"): "no 512x512 bins, which would take a map of 262,144 channels",
    ("ps_roi_pool", "size 512"): "no 512x512 bins, which would take a map of 262,144 channels",
}


def gaps(op: str) -> list[str]:
    """Returns one line per value, or pair of values, that no row of an op has."""
    return [f"`{op}`: {UNSUPPORTED.get((op, gap), f'no row has {gap}')}" for gap in covering(op)[1]]


def covering(op: str) -> tuple[list[Corner], list[str]]:
    """Returns the rows of one op, and the values and pairs that no feasible row has.

    A pair is reported only if both of its values occur in some row. The choice is greedy: the next
    row is the first among those that add the most new pairs.
    """
    names = list(LEVELS)
    values = [LEVELS[name] for name in names]
    every = [Corner(op, **dict(zip(names, row, strict=True))) for row in product(*values)]
    rows = [corner for corner in every if feasible(corner)]
    level = torch.tensor(
        [[LEVELS[n].index(getattr(corner, n)) for n in names] for corner in rows]
    ).view(-1, len(names))
    max_levels = max(map(len, values))
    pairs = list(combinations(range(len(names)), 2))
    ids = torch.stack(
        [
            (i * max_levels + level[:, a]) * max_levels + level[:, b]
            for i, (a, b) in enumerate(pairs)
        ],
        1,
    )
    covered = torch.ones(len(pairs) * max_levels * max_levels, dtype=torch.bool)
    covered[ids.flatten()] = False
    chosen = []
    while not bool(covered.all()):
        best = int((~covered[ids]).sum(1).argmax())
        chosen.append(rows[best])
        covered[ids[best]] = True
    reached = set(ids.flatten().tolist())
    present = [{getattr(corner, name) for corner in rows} for name in names]
    missing = [
        f"{name} {x}"
        for name, some, every_value in zip(names, present, values, strict=True)
        for x in every_value
        if x not in some
    ]
    missing += [
        f"{names[a]} {x} with {names[b]} {y}"
        for i, (a, b) in enumerate(pairs)
        for k, x in enumerate(values[a])
        for m, y in enumerate(values[b])
        if x in present[a]
        and y in present[b]
        and (i * max_levels + k) * max_levels + m not in reached
    ]
    return chosen, missing


def corners(only: tuple[str, ...] = ()) -> Iterator[Corner]:
    """Yields the rows of all ops whose name starts with one of ``only``; empty for all ops."""
    for op in OPS:
        if only and not op.startswith(only):
            continue
        yield from (corner for corner in EXTRA_ROWS if corner.op == op)
        yield from covering(op)[0]


def shrunk(corner: Corner) -> Corner:
    """Returns the same row with a small feature map and few RoIs, for tests."""
    small: dict[str, Any] = {"side": min(corner.side, 24), "size": min(corner.size, 7), "images": 1}
    small |= {"rois": min(corner.rois, 3), "channels": min(corner.channels, 3)}
    return replace(corner, **small)
