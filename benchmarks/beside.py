"""Times the ops of two built checkouts in turn, row by row, and prints new / old.

Each ratio has a confidence interval of about 95%. A row is slower beyond noise if its whole
interval is above 1.05. Such rows are listed at the end.

python benchmarks/beside.py ../old . --threads 1 nms roi_align
python benchmarks/beside.py ../old . --corners    # the rows of `detops bench corners`
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS, SECONDS = 3, 0.08  # per process; the first round allocates the inputs and warms up
# The allocator places a row's memory at random. If the memory exceeds the inner caches, the row may
# take up to 1.7 times as long. Each process therefore leaves a different gap before a row, of at
# most this many bytes.
PROCESSES, MAX_GAP = 5, 1 << 20
# Rows above the ratio are measured in this many more processes.
SLOW_RATIO, EXTRA_PROCESSES = 1.05, 10
# The process keeps freed memory. Whether an allocator returns pages and requests them again is
# random, and costs more than some rows.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
Pairs = dict[str, list[list[float]]]  # seconds of a row, old and new, per process


def corner_rows(ops: list[str]):
    """Yields the rows of `detops bench corners`, without their baselines.

    A row is its name and a function that builds its case, so inputs exist only during its
    measurement.
    """
    from detops.bench.corner_calls import calls, tiny
    from detops.bench.corners import corners

    for corner in corners(tuple(ops)):
        name = f"{corner.op}, {corner.name()}, {corner.direction} {corner.layout} {corner.dtype}"
        yield name, lambda corner=corner: calls(corner)[0]
    for case in tiny():
        if not ops or case.op in ops:
            yield case_name(case), lambda case=case: case.ours


def case_name(case) -> str:
    return f"{case.op}, {case.name} {case.layout} {case.dtype}"


def worker(ops: list[str], threads: int, use_corners: bool) -> None:
    """Prints the row names, then answers ascending row numbers with CPU seconds."""
    import torch

    from detops.bench.run import all_cases

    def rows():
        if use_corners:
            return corner_rows(ops)
        cases = all_cases(torch.device("cpu"), ops)
        return ((case_name(case), lambda case=case: case.ours) for case in cases)

    torch.set_num_threads(threads)
    replies, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps([name for name, _ in rows()]), file=replies, flush=True)
    gaps: list[bytes] = []
    position, remaining = -1, rows()  # a row keeps its inputs until the next one is built
    for line in sys.stdin:
        if position < int(line):
            while position < int(line):
                (_, make), position = next(remaining), position + 1
            gaps.append(bytes(random.randrange(MAX_GAP)))
            call = make()
        count, began = 0, time.process_time()
        while count == 0 or time.process_time() - began < SECONDS:
            call()
            count += 1
        print((time.process_time() - began) / count, file=replies, flush=True)


class Build:
    """A process that runs the ops of one checkout."""

    def __init__(self, checkout: Path, arguments: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--worker", "--threads", str(arguments.threads)]
        command += ["--corners"] if arguments.corners else []
        self.process = subprocess.Popen(
            [*command, *arguments.ops],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, **KEEP_PAGES, "PYTHONPATH": str(checkout)},
        )
        self.rows = {name: i for i, name in enumerate(json.loads(self.process.stdout.readline()))}

    def seconds(self, row: str) -> float:
        self.process.stdin.write(f"{self.rows[row]}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def measure(arguments: argparse.Namespace, pairs: Pairs, processes: int) -> None:
    """Adds times to the rows in `pairs`; if it is empty, to all rows that both checkouts have."""
    only = list(pairs)
    for _ in range(processes):
        builds = [Build(each.resolve(), arguments) for each in arguments.checkouts]
        for row in only or [row for row in builds[0].rows if row in builds[1].rows]:
            rounds = [[build.seconds(row) for build in builds] for _ in range(ROUNDS)]
            pairs.setdefault(row, []).append(medians(rounds[1:]))
        for build in builds:
            build.process.kill()
            build.process.wait()


def medians(pairs: list[list[float]]) -> list[float]:
    return [statistics.median(times) for times in zip(*pairs, strict=True)]


def ratio_with_interval(pairs: list[list[float]]) -> tuple[float, float, float]:
    """Returns the median of new / old, and a confidence interval for the true median.

    The true median is that of infinitely many processes. The ratio of a process lies above or below
    it with equal probability. All n ratios lie on one side with probability 2^(1 - n), as in the
    sign test.
    """
    ratios, n = sorted(new / old for old, new in pairs), len(pairs)
    excluded, probability = 0, 2 ** (1 - n)
    while probability + 2 * math.comb(n, excluded + 1) / 2**n < 0.07:
        excluded += 1
        probability += 2 * math.comb(n, excluded) / 2**n
    return statistics.median(ratios), ratios[excluded], ratios[n - 1 - excluded]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "checkouts", nargs="*", type=Path, help="old and new checkout, then ops (default: all)"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--corners", action="store_true", help="measure the rows of detops bench corners"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    if arguments.worker:
        worker([str(op) for op in arguments.checkouts], arguments.threads, arguments.corners)
        return
    arguments.ops = [str(op) for op in arguments.checkouts[2:]]
    arguments.checkouts = arguments.checkouts[:2]
    pairs: Pairs = {}
    measure(arguments, pairs, PROCESSES)
    slower = {
        row: samples
        for row, samples in pairs.items()
        if ratio_with_interval(samples)[0] > SLOW_RATIO
    }
    if slower:
        measure(arguments, slower, EXTRA_PROCESSES)  # appends to the lists in `pairs`
    for row, samples in pairs.items():
        ratio, low, high = ratio_with_interval(samples)
        old, new = (1e6 * seconds for seconds in medians(samples))
        print(f"{ratio:5.2f} {low:5.2f} to {high:4.2f}  {old:11.1f} us {new:11.1f} us  {row}")
    significant = [
        row for row, samples in pairs.items() if ratio_with_interval(samples)[1] > SLOW_RATIO
    ]
    print(f"slower beyond noise: {'; '.join(significant) or 'none'}")


if __name__ == "__main__":
    main()
