"""Measures errors of the ops against exact results, for docs/reliability-figures.md.

python tests/support/accuracy.py docs/reliability-figures.md

Runs the calls of calls.py in float32 and float16, and in float64 with the same numbers. Other tests
compare the float64 results with slow references. An error is the largest difference of a result
divided by its largest element, in units of the roundoff of its dtype: 0.5 is the best possible.
torchvision ops of the same name get the same calls. The table also states a bound for each error.
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
TABLE_DTYPES = (torch.float32, torch.float16)
SEEDS = range(5)  # seeds of the inputs for the table
# Bound in units for results and gradients of 16-bit inputs: all arithmetic is float32 and rounded
# once. Results that stay float32 use the bounds of float32.
HALF_PRECISION_BOUND = 4.0


class Pair(NamedTuple):
    """Numbers for the results and the gradients of an op; None if there are none."""

    forward: float | None
    backward: float | None = None


# Bounds in float32 units. Ops on feature maps owe most of their error to coordinates, which scale
# with the feature map: these bounds are for feature maps of about 26 pixels and bins of a few
# pixels.
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


def op_name(call: Call) -> str:
    """Returns the name of the call's op."""
    return call.name.split(",")[0].split(" of ")[0]


def has_floating_results(call: Call) -> bool:
    """Returns whether the op gives numbers, not only decisions.

    Skips calls in 16 bits: one call of each kind is enough.
    """
    tensors = call.tensors()
    narrow = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors.values())
    return not narrow and any(t.is_floating_point() for t in call.forward(tensors))


def rounded(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Rounds numbers to a dtype, in float64. Replaces NaN boxes: torchvision crashes on them."""
    return {
        n: t.nan_to_num(9.0).to(dtype).double() if t.is_floating_point() else t
        for n, t in tensors.items()
    }


def results(
    function: Callable[..., Any], call: Call, tensors: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the outputs of a function for a call's tensors, and the gradients."""
    leaves = {n: t.detach().requires_grad_(n in call.differentiable) for n, t in tensors.items()}
    outputs = function(**leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    outputs = [o for o in outputs if o.is_floating_point()]
    grads: list[Tensor] = []
    if call.differentiable:  # gradients of one sign: cancellation would leave no exact digits
        output_grads = [
            torch.linspace(0.5, 1.5, o.numel()).view(o.shape).to(o.dtype) for o in outputs
        ]
        grads = list(
            torch.autograd.grad(outputs, [leaves[n] for n in call.differentiable], output_grads)
        )
    return [o.detach() for o in outputs], grads


def error(found: Tensor, exact: Tensor) -> float:
    """Returns the error in units of roundoff; infinities and NaN must be equal."""
    a, b = found.double().flatten(), exact.flatten()
    is_equal = (a == b) | (a.isnan() & b.isnan())
    a, b = a[~is_equal], b[~is_equal]
    if not a.numel():
        return 0.0
    scale = exact[exact.isfinite()].abs().max()
    return ((a - b).abs().max() / scale / ROUNDOFF[found.dtype]).item()


def errors(call: Call, function: Callable[..., Any], dtype: torch.dtype, seed: int) -> Pair:
    """Returns the errors of ``function``, called with the tensors of a detops call."""
    exact_tensors = rounded(call.tensors(seed=seed), dtype)
    tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in exact_tensors.items()}
    found, exact = results(function, call, tensors), results(call.function, call, exact_tensors)
    return Pair(*(largest_error(map(error, *each)) for each in zip(found, exact, strict=True)))


def largest_error(found: Iterable[float | None]) -> float | None:
    """Returns the largest number, or None if there is none; NaN counts as the largest."""
    present = [x for x in found if x is not None]
    return max(present, key=lambda x: (math.isnan(x), x), default=None)


def largest_errors(pairs: Iterable[Pair]) -> Pair:
    """Returns the largest error of the results and of the gradients."""
    return Pair(*map(largest_error, zip(*pairs, strict=True)))


def torchvision_op(call: Call) -> Callable[..., Any] | None:
    """Returns the torchvision op of the same name if it accepts the call's arguments."""
    ours = getattr(call.function, "func", call.function)
    options = getattr(call.function, "keywords", {})
    theirs = getattr(torchvision.ops, getattr(ours, "__name__", ""), None)
    if theirs is None or ours.__module__.partition(".")[0] != "detops":
        return None
    if "iou" in ours.__name__ and options:  # torchvision has no modes and pairs
        return None
    return partial(theirs, **options)


class Row(NamedTuple):
    """An op's largest errors over its calls."""

    ours: Pair
    theirs: Pair
    ours_half: Pair
    theirs_half: Pair


def measure(seeds: Iterable[int] = SEEDS, with_torchvision: bool = True) -> dict[str, Row]:
    """Returns a row for each op that gives numbers."""
    found: dict[str, list[Row]] = {}
    for call in filter(has_floating_results, CALLS):
        theirs = torchvision_op(call) if with_torchvision else None

        def errors_over_seeds(
            function: Callable[..., Any] | None, dtype: torch.dtype, call=call
        ) -> Pair:
            if function is None:
                return Pair(None)
            return largest_errors(errors(call, function, dtype, seed) for seed in seeds)

        pairs = [
            errors_over_seeds(f, dtype) for dtype in TABLE_DTYPES for f in (call.function, theirs)
        ]
        found.setdefault(op_name(call), []).append(Row(*pairs))
    return {op: Row(*map(largest_errors, zip(*rows, strict=True))) for op, rows in found.items()}


def text(x: float | None) -> str:
    """Formats an error with few digits."""
    if x is None:
        return "-"
    return str(x) if math.isnan(x) else f"{x:,.0f}" if x >= 10 else f"{x:.1f}"


def table(rows: dict[str, Row]) -> str:
    """Formats bounds and errors, with the errors of torchvision after a slash."""

    def cell(ours: float | None, theirs: float | None) -> str:
        return text(ours) if theirs is None else f"{text(ours)} / {text(theirs)}"

    lines = [
        "| op | result: bound | error | gradients: bound | error | float16 result: error |",
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
    rows = table(measure())
    print(rows, end="")
    for page in map(Path, sys.argv[1:]):
        page.write_text(fill(page.read_text(), "numbers", rows))
