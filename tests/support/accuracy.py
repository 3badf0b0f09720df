"""How far ops are from exact results, and how far they may be: a table of docs/reliability.md.

python tests/support/accuracy.py docs/reliability.md

The calls of calls.py are made in float32 and float16, and in float64 with the same numbers, whose
results other tests compare with slow references. An error is the largest difference of a result
over the result's largest element, in units of the roundoff of the result's dtype: a half is as near
as it can come. torchvision's ops of the same name get the same calls.
"""

import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torchvision
from call import Call
from calls import CALLS
from torch import Tensor

from detops.marks import fill

ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TABLED = (torch.float32, torch.float16)
SEEDS = range(5)  # of the inputs behind the table
# Units that a result and its gradients may be off by where inputs have 16 bits: all arithmetic is
# float32's, and rounded once. Results that are float32 all the same have the bounds of float32.
HALF = 4.0


class Pair(NamedTuple):
    """Of the results and of the gradients of an op; None where there is nothing."""

    forward: float | None
    backward: float | None = None


# Units in float32. Most of an error of what reads maps is that of a coordinate, which has the map's
# size: these are for maps of some 26 pixels and bins of a few.
BOUNDS: dict[str, Pair] = {
    "active_rotated_filter": Pair(4.0, 8.0),
    "axpy": Pair(2.0, 0.0),
    "border_align": Pair(128.0, 64.0),
    "box_iou": Pair(16.0, 16.0),
    "box_iou_quadri": Pair(2.0),
    "box_iou_rotated": Pair(2.0),
    "carafe": Pair(16.0, 32.0),
    "chamfer_distance": Pair(4.0, 4.0),
    "complete_box_iou": Pair(16.0, 32.0),
    "complete_box_iou_loss": Pair(32.0, 32.0),
    "convex_giou": Pair(2.0, 2.0),
    "convex_iou": Pair(2.0),
    "corner_pool": Pair(0.0, 8.0),
    "decode_boxes": Pair(4.0, 4.0),
    "deform_conv2d": Pair(32.0, 64.0),
    "deform_psroi_pooling": Pair(128.0, 64.0),
    "deform_roi_pool": Pair(128.0, 128.0),
    "distance_box_iou": Pair(16.0, 32.0),
    "distance_box_iou_loss": Pair(16.0, 32.0),
    "encode_boxes": Pair(256.0, 64.0),
    "gdh": Pair(0.0, 0.0),
    "generalized_box_iou": Pair(8.0, 8.0),
    "generalized_box_iou_loss": Pair(16.0, 8.0),
    "heatmaps_to_keypoints": Pair(16.0),
    "lltm": Pair(8.0, 16.0),
    "lltm_cell": Pair(8.0, 8.0),
    "mask_iou": Pair(0.0),
    "masked_conv2d": Pair(32.0, 16.0),
    "masks_to_boxes": Pair(0.0),
    "match_boxes": Pair(8.0),
    "matrix_nms": Pair(16.0),
    "min_area_polygons": Pair(2.0),
    "mlp": Pair(16.0, 32.0),
    "ms_deform_attn": Pair(32.0, 32.0),
    "multiscale_roi_align": Pair(64.0, 64.0),
    "point_sample": Pair(64.0, 64.0),
    "prroi_pool": Pair(256.0, 4096.0),
    "ps_roi_align": Pair(64.0, 64.0),
    "ps_roi_pool": Pair(2.0, 4.0),
    "riroi_align_rotated": Pair(128.0, 64.0),
    "roi_align": Pair(128.0, 64.0),
    "roi_align_max": Pair(256.0, 64.0),
    "roi_align_rotated": Pair(64.0, 64.0),
    "roi_pool": Pair(0.0, 4.0),
    "rotated_feature_align": Pair(64.0, 32.0),
    "rotated_iou": Pair(2.0, 2.0),
    "sigmoid_focal_loss": Pair(8.0, 16.0),
    "soft_nms": Pair(4.0),
    "softmax_focal_loss": Pair(8.0, 8.0),
    "weighted_box_fusion": Pair(2.0),
    "winograd_conv2d": Pair(64.0, 128.0),
}


def op_of(call: Call) -> str:
    """The name of its op."""
    return call.name.split(",")[0].split(" of ")[0]


def has_numbers(call: Call) -> bool:
    """Whether its op gives numbers, and not decisions alone; one call of each kind is enough."""
    tensors = call.tensors()
    narrow = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors.values())
    return not narrow and any(t.is_floating_point() for t in call.forward(tensors))


def rounded(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Numbers of a dtype, in float64. A box that is NaN becomes one: torchvision crashes on it."""
    return {
        n: t.nan_to_num(9.0).to(dtype).double() if t.is_floating_point() else t
        for n, t in tensors.items()
    }


def results(
    function: Callable[..., Any], call: Call, tensors: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What a function gives for a call's tensors, and the gradients."""
    leaves = {n: t.detach().requires_grad_(n in call.wants) for n, t in tensors.items()}
    outputs = function(**leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    outputs = [o for o in outputs if o.is_floating_point()]
    grads: list[Tensor] = []
    if call.wants:  # gradients of one sign: what cancels has no exact digits to compare
        given = [torch.linspace(0.5, 1.5, o.numel()).view(o.shape).to(o.dtype) for o in outputs]
        grads = list(torch.autograd.grad(outputs, [leaves[n] for n in call.wants], given))
    return [o.detach() for o in outputs], grads


def error(found: Tensor, exact: Tensor) -> float:
    """In units of roundoff; infinite numbers and NaN must be the same."""
    a, b = found.double().flatten(), exact.flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    a, b = a[~same], b[~same]
    if not a.numel():
        return 0.0
    most = exact[exact.isfinite()].abs().max()
    return ((a - b).abs().max() / most / ROUNDOFF[found.dtype]).item()


def errors(call: Call, function: Callable[..., Any], dtype: torch.dtype, seed: int) -> Pair:
    """Of ``function``, called as a call of detops is."""
    exact_tensors = rounded(call.tensors(seed=seed), dtype)
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in exact_tensors.items()}
    found, exact = results(function, call, tensors), results(call.function, call, exact_tensors)
    return Pair(*(worst(map(error, *each)) for each in zip(found, exact, strict=True)))


def worst(found: Iterable[float | None]) -> float | None:
    """The largest of what there is; NaN is the largest."""
    there = [x for x in found if x is not None]
    return max(there, key=lambda x: (math.isnan(x), x), default=None)


def largest(pairs: Iterable[Pair]) -> Pair:
    """Of each kind."""
    return Pair(*map(worst, zip(*pairs, strict=True)))


def torchvisions(call: Call) -> Callable[..., Any] | None:
    """torchvision's op of the same name, if it takes the call's arguments."""
    ours = getattr(call.function, "func", call.function)
    options = getattr(call.function, "keywords", {})
    theirs = getattr(torchvision.ops, getattr(ours, "__name__", ""), None)
    if theirs is None or ours.__module__.partition(".")[0] != "detops":
        return None
    if "iou" in ours.__name__ and options:  # modes and pairs, which are not torchvision's
        return None
    return partial(theirs, **options)


class Row(NamedTuple):
    """An op's largest errors over its calls."""

    ours: Pair
    theirs: Pair
    ours_half: Pair
    theirs_half: Pair


def measure(seeds: Iterable[int] = SEEDS, with_torchvision: bool = True) -> dict[str, Row]:
    """A row for each op that gives numbers."""
    found: dict[str, list[Row]] = {}
    for call in filter(has_numbers, CALLS):
        theirs = torchvisions(call) if with_torchvision else None

        def of_seeds(function: Callable[..., Any] | None, dtype: torch.dtype, call=call) -> Pair:
            if function is None:
                return Pair(None)
            return largest(errors(call, function, dtype, seed) for seed in seeds)

        both = [of_seeds(f, dtype) for dtype in TABLED for f in (call.function, theirs)]
        found.setdefault(op_of(call), []).append(Row(*both))
    return {op: Row(*map(largest, zip(*rows, strict=True))) for op, rows in found.items()}


def text(x: float | None) -> str:
    """An error in few digits."""
    if x is None:
        return "-"
    return str(x) if math.isnan(x) else f"{x:,.0f}" if x >= 10 else f"{x:.1f}"


def table(rows: dict[str, Row]) -> str:
    """Bounds, errors, and torchvision's errors after a slash."""

    def cell(ours: float | None, theirs: float | None) -> str:
        return text(ours) if theirs is None else f"{text(ours)} / {text(theirs)}"

    lines = [
        "| op | result within | is within | gradients within | are within | result, float16 |",
        "|---|---|---|---|---|---|",
    ]
    for op, row in sorted(rows.items()):
        bound = BOUNDS[op]
        cells = [text(bound.forward), cell(row.ours.forward, row.theirs.forward)]
        cells += [text(bound.backward), cell(row.ours.backward, row.theirs.backward)]
        cells.append(cell(row.ours_half.forward, row.theirs_half.forward))
        lines.append(f"| `{op}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    numbers = table(measure())
    print(numbers, end="")
    for page in map(Path, sys.argv[1:]):
        page.write_text(fill(page.read_text(), "numbers", numbers))
