"""Measures the worst-case input size of every op that takes one second, and its memory.

python benchmarks/limits.py --page docs/reliability-figures.md
python benchmarks/limits.py --edge docs/reliability-figures.md    # calls of the sizes on the page

Sizes double until a call takes a quarter of a second of CPU time on one thread. The size for one
second is extrapolated from the growth of the last two. Each op runs in a separate process, which
reports the memory used in addition to arguments, results and their gradients.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from limits_cases import LINEAR, PAIR_UNITS, PAIRS, Call
from torch import Tensor

from detops.bench.memory import peak_resident, reset_peak
from detops.bench.run import describe_machine
from detops.marks import fill

FIRST_SIZE, STOP_SECONDS, REPEATS = 4, 0.25, 3  # first size, seconds to stop at, calls per size
MAX_BYTES = 4 << 30  # bytes of arguments


def tensors(x: Any) -> list[Tensor]:
    """Returns the tensors in arguments or a result."""
    if isinstance(x, Tensor):
        return [x]
    return [t for y in x for t in tensors(y)] if isinstance(x, (list, tuple)) else []


def argument_tensors(call: Call) -> list[Tensor]:
    """Returns the tensors of a partial; calls of PAIRS hide theirs, which are small."""
    return tensors(getattr(call, "args", ()))


def seconds(run: Call) -> float:
    """Returns CPU seconds; callers take the minimum, because kernel memory management scatters."""
    began = time.process_time()
    run()
    return time.process_time() - began


def run_both_passes(call: Call) -> Any:
    """Runs both passes, or only the forward pass if there are no gradients."""
    result = call()
    outputs = [t for t in tensors(result) if t.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    return result


def run_forward(call: Call) -> Any:
    """Runs the forward pass."""
    with torch.no_grad():
        return call()


def call_maker(op: str) -> Callable[[int], Call]:
    """Returns a function that builds the op's call for a size."""
    return PAIRS[op] if op in PAIRS else LINEAR[op][1]


def pass_runner(gradients: bool) -> Callable[[Call], Any]:
    """Returns the function that runs both passes, or only the forward pass."""
    return run_both_passes if gradients else run_forward


def measure(op: str, gradients: bool) -> dict[str, Any]:
    """Returns the size for one second, the exponent, and bytes at the last size."""
    make, passes = call_maker(op), pass_runner(gradients)
    n, times = FIRST_SIZE, [0.0]
    call = make(n)
    passes(call)
    while times[-1] < STOP_SECONDS and sum(t.nbytes for t in argument_tensors(call)) < MAX_BYTES:
        n *= 2
        call = make(n)
        times.append(min(seconds(lambda call=call: passes(call)) for _ in range(REPEATS)))
    power = max(1.0, math.log2(times[-1] / times[-2]))
    return {
        "size": n * (1 / times[-1]) ** (1 / power),
        "power": power,
        "bytes": measure_memory(call, passes)[0],
        "measured": n,
        "gradients": any(t.requires_grad for t in argument_tensors(call)),
    }


def measure_memory(call: Call, passes: Callable[[Call], Any]) -> tuple[int, int]:
    """Returns peak bytes besides arguments, results and their gradients, and the bytes of those."""
    inputs = argument_tensors(call)
    for t in inputs:
        t.grad = None
    before = reset_peak()
    results = tensors(passes(call))
    result_bytes = sum(
        t.nbytes for t in [*results, *(t.grad for t in inputs if t.grad is not None)]
    )
    return max(0, peak_resident() - before - result_bytes), result_bytes + sum(
        t.nbytes for t in inputs
    )


def format_size(size: float) -> str:
    """Formats a size with two significant digits; "any" if a call takes no time, such as a view."""
    if size > 1e12:
        return "any"
    digits = 10 ** (math.floor(math.log10(size)) - 1)
    return f"{round(size / digits) * digits:,.0f}"


def format_memory(row: dict[str, Any]) -> str:
    """Formats the memory of the largest call."""
    return f"{row['bytes'] / 2**20:.0f} MiB at {row['measured']:,}"


def table(found: dict[str, dict[str, Any]], both: dict[str, dict[str, Any]]) -> str:
    """Formats a row per op; columns for both passes are empty for ops without a backward pass."""
    lines = [
        "| op | unit of n | n for 1 s | n for 1 s, with gradients | time grows as | extra memory |",
        "|---|---|---|---|---|---|",
    ]
    for op, row in found.items():
        unit = LINEAR[op][0] if op in LINEAR else PAIR_UNITS.get(op, "boxes")
        name, *more = op.split(", ")
        text = ", ".join([f"`{name}`", *more])
        both_size = format_size(both[op]["size"]) if op in both else "-"
        power = max(row["power"], both[op]["power"] if op in both else 1)
        lines.append(
            f"| {text} | {unit} | {format_size(row['size'])} | {both_size} | n^{power:.1f} "
            f"| {format_memory(both.get(op, row))} |"
        )
    return "\n".join(lines) + "\n"


def measure_at_size(op: str, gradients: bool, n: int) -> dict[str, Any]:
    """Returns seconds of a call, and its fraction of ``n``; MAX_BYTES limits the arguments."""
    small, passes = max(FIRST_SIZE, n // 64), pass_runner(gradients)
    call = call_maker(op)(small)
    passes(call)
    fraction = min(
        1.0, MAX_BYTES / max(1, sum(t.nbytes for t in argument_tensors(call)) * n / small)
    )
    call = call_maker(op)(int(n * fraction))
    return {"seconds": min(seconds(lambda: passes(call)) for _ in range(REPEATS)), "part": fraction}


def read_sizes(page: Path) -> Iterator[tuple[str, bool, int]]:
    """Yields op, gradients or not, and size for one second, from the tables of a page."""
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        op = cells[0].replace("`", "") if cells else ""
        if op in (*PAIRS, *LINEAR) and len(cells) == 6 and "n^" in cells[4]:
            for gradients, cell in enumerate(cells[2:4]):
                if cell not in ("-", "any"):
                    yield op, bool(gradients), int(cell.replace(",", ""))


def check_edge(page: Path) -> int:
    """Returns how many calls take more than twice the time that the page claims."""
    slow = 0
    for op, gradients, n in read_sizes(page):
        found = run_in_process(op, gradients, n)
        slow += found["seconds"] > 2 * found["part"]
    return slow


def run_in_process(op: str, gradients: bool, n: int = 0) -> dict[str, Any]:
    """Runs `measure`, or `measure_at_size` if ``n`` is given, in a separate process."""
    command = [sys.executable, __file__, "--op", op, "--size", str(n)]
    command += ["--gradients"] if gradients else []
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(op, "with gradients" if gradients else "", n or "", found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="page whose tables are rewritten")
    parser.add_argument("--edge", type=Path, help="page whose sizes are checked")
    parser.add_argument("--op", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gradients", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.op:
        torch.set_num_threads(1)
        measure_call = partial(measure_at_size, n=arguments.size) if arguments.size else measure
        print(json.dumps(measure_call(arguments.op, arguments.gradients)))
        return
    if arguments.edge:
        sys.exit(check_edge(arguments.edge))
    machine = f"{describe_machine(torch.device('cpu')).name}, one thread.\n\n"
    for mark, ops in {"limits": PAIRS, "linear": LINEAR}.items():
        found = {op: run_in_process(op, False) for op in ops}
        both = {op: run_in_process(op, True) for op, row in found.items() if row["gradients"]}
        text = table(found, both)
        print(text)
        if arguments.page:
            arguments.page.write_text(fill(arguments.page.read_text(), mark, machine + text))


if __name__ == "__main__":
    main()
