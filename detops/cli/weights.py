# SPDX-License-Identifier: MIT
"""`detops weights`."""

from __future__ import annotations

from .options import DEFAULT_WEIGHTS, SHAPES_WEIGHTS


def weights() -> None:
    """List the detectors with available weights.

    Weights of torchvision are downloaded on first use. Their AP is COCO AP in percent, as stated by
    torchvision. The AP of the others is in their README.

    For example:

        detops weights
    """
    from ..engine.published import METRICS, published_detectors

    rows = [("--weights", "MB", *(f"{kind} AP" for kind in METRICS), "available", "detects")]
    shipped = (
        (DEFAULT_WEIGHTS, "tree crowns in aerial photographs; the default"),
        (SHAPES_WEIGHTS, "generated shapes"),
    )
    for file, classes in shipped:
        exists = file.exists()
        size = f"{file.stat().st_size / 1e6:.0f}" if exists else "-"
        rows.append((str(file), size, *("-" for _ in METRICS), _yes_no(exists), classes))
    for each in published_detectors():
        ap = (f"{each.ap[kind]:.1f}" if kind in each.ap else "-" for kind in METRICS)
        classes = "persons" if each.classes == 1 else f"{each.classes} everyday classes"
        size = f"{each.megabytes:.0f}"
        rows.append((each.name, size, *ap, _yes_no(each.downloaded), classes))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _yes_no(condition: bool) -> str:
    return "yes" if condition else "no"
