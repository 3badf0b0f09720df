"""What ops cost at their worst whose time grows with the square of a size, or with its cube.

python benchmarks/limits.py --page docs/reliability.md

Sizes double until a call takes a quarter of a second of processor time on one thread; the size of
one that takes a second follows from the growth of the last two. Each op runs in a process of its
own, which tells the memory that it took beside its arguments and results.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import detops
from detops.bench.run import machine_of
from detops.marks import fill

FIRST, ENOUGH, REPEATS = 128, 0.25, 3  # size, seconds, calls
ALMOST_ONE = 0.9999  # a threshold under which every box stays, and is compared with all others


def nested(n: int, columns: int = 4) -> Tensor:
    """Boxes about one point, of all sizes: no grid tells them apart."""
    generator = torch.Generator().manual_seed(0)
    half = 1 + 500 * torch.rand(n, 2, generator=generator)
    if columns == 4:
        return torch.cat([-half, half], 1)
    if columns == 5:
        angles = 90 * torch.rand(n, 1, generator=generator)
        return torch.cat([torch.zeros(n, 2), 2 * half, angles], 1)
    return (half[:, None] * torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])).flatten(1)


def scores(n: int) -> Tensor:
    """In no order."""
    return torch.rand(n, generator=torch.Generator().manual_seed(1))


def masks(n: int) -> Tensor:
    """Of 28 x 28 pixels."""
    return torch.rand(n, 28, 28, generator=torch.Generator().manual_seed(0)) > 0.5


def points(n: int, columns: int = 2) -> Tensor:
    """Between 0 and 1."""
    return torch.rand(1, n, columns, generator=torch.Generator().manual_seed(n))


Call = Callable[[], object]


def _suppress(name: str, columns: int = 4, **options: object) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        arguments = [nested(n, columns), scores(n)]
        if name.startswith(("batched", "matrix")):
            arguments.append(torch.zeros(n, dtype=torch.int64))
        return lambda: getattr(detops, name)(*arguments, **options)

    return make


def _pairs(name: str, columns: int = 4) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        boxes = nested(n, columns)
        return lambda: getattr(detops, name)(boxes, boxes)

    return make


def _of_masks(n: int) -> Call:
    of_n, scored = masks(n), scores(n)
    return lambda: detops.mask_nms(of_n, scored, ALMOST_ONE)


def _mask_overlaps(n: int) -> Call:
    of_n = masks(n)
    return lambda: detops.mask_iou(of_n, of_n)


def _fused(n: int) -> Call:
    boxes, labels = nested(n), torch.zeros(n, dtype=torch.int64)
    return lambda: detops.weighted_box_fusion(
        [boxes], [scores(n)], [labels], iou_threshold=ALMOST_ONE
    )


def _matched(n: int) -> Call:
    # Products of two ramps: every object wants the same places, and all paths are long.
    ramp = torch.arange(1.0, n + 1)
    cost = (ramp[:, None] * ramp)[None]
    return lambda: detops.linear_assignment(cost)


def _convex(n: int) -> Call:
    sets, quads = points(n, 18)[0], nested(n, 8) / 1000
    return lambda: detops.convex_iou(sets, quads)


def _inside(n: int) -> Call:
    spots, quads = points(n)[0], nested(n, 8)
    return lambda: detops.points_in_polygons(spots, quads)


def _chamfer(n: int) -> Call:
    first, second = points(n), points(n + 1)[:, :n]
    return lambda: detops.chamfer_distance(first, second)


OPS: dict[str, Callable[[int], Call]] = {
    "nms": _suppress("nms", iou_threshold=ALMOST_ONE),
    "batched_nms": _suppress("batched_nms", iou_threshold=ALMOST_ONE),
    "nms_match": _suppress("nms_match", iou_threshold=ALMOST_ONE),
    "nms_rotated": _suppress("nms_rotated", 5, iou_threshold=ALMOST_ONE),
    "nms_quadri": _suppress("nms_quadri", 8, iou_threshold=ALMOST_ONE),
    "soft_nms": _suppress("soft_nms", iou_threshold=ALMOST_ONE, method="naive"),
    "matrix_nms": _suppress("matrix_nms"),
    "weighted_box_fusion": _fused,
    "mask_nms": _of_masks,
    "mask_iou": _mask_overlaps,
    "box_iou": _pairs("box_iou"),
    "complete_box_iou": _pairs("complete_box_iou"),
    "match_boxes": _pairs("match_boxes"),
    "box_iou_rotated": _pairs("box_iou_rotated", 5),
    "box_iou_quadri": _pairs("box_iou_quadri", 8),
    "convex_iou": _convex,
    "points_in_polygons": _inside,
    "chamfer_distance": _chamfer,
    "linear_assignment": _matched,
}


def peak() -> int:
    """Bytes that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def bytes_of(x: object) -> int:
    """Of a result."""
    if isinstance(x, Tensor):
        return x.nbytes
    return sum(map(bytes_of, x)) if isinstance(x, (list, tuple)) else 0


def seconds(call: Call) -> float:
    """Of processor time; the system's work on memory scatters, so that the least of some counts."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measure(op: str) -> dict[str, float]:
    """The size of one second, the exponent, and bytes for each element of the last size."""
    torch.set_num_threads(1)
    n, times = FIRST, [0.0]
    OPS[op](n)()
    while times[-1] < ENOUGH:
        n *= 2
        call = OPS[op](n)
        before = peak()
        result = call()
        more = peak() - before - bytes_of(result)
        del result
        times.append(min(seconds(call) for _ in range(REPEATS)))
    power = max(1.0, math.log2(times[-1] / times[-2]))
    return {
        "size": n * (1 / times[-1]) ** (1 / power),
        "power": power,
        "bytes": max(0, more) / n,
        "measured": n,
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """A row per op."""
    lines = [
        "| op | n of a second | time grows by | memory beside the result |",
        "|---|---|---|---|",
    ]
    for op, row in found.items():
        digits = 10 ** (math.floor(math.log10(row["size"])) - 1)
        size = f"{round(row['size'] / digits) * digits:,.0f}"
        memory = f"{row['bytes'] * row['measured'] / 2**20:.0f} MiB at {row['measured']:,.0f}"
        lines.append(f"| `{op}` | {size} | n^{row['power']:.1f} | {memory} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="a page whose table is written anew")
    parser.add_argument("--op", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.op:
        print(json.dumps(measure(arguments.op)))
        return
    found = {}
    for op in OPS:
        command = [sys.executable, __file__, "--op", op]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        found[op] = json.loads(told.splitlines()[-1])
        print(op, found[op], flush=True)
    text = f"{machine_of(torch.device('cpu')).name}, one thread.\n\n{table(found)}"
    print(text)
    if arguments.page:
        arguments.page.write_text(fill(arguments.page.read_text(), "limits", text))


if __name__ == "__main__":
    main()
