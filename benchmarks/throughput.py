"""Measures images per second of a detector for various threads, batch sizes and processes.

python benchmarks/throughput.py --seconds 30 --page docs/optimize.md

Runs Mask R-CNN (R50-FPN) on noise of 800 x 1333 pixels, from torchvision and from detops with
`detops.optimize`. The rows of a system run in turn, one at a time; results are medians over the
rounds. Processes start together, each with its own threads, and share nothing.
"""

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from detops.bench.run import describe_machine
from detops.marks import fill

# Processes, threads per process, images per batch.
SETTINGS = ((1, 1, 1), (1, 2, 1), (1, 2, 4), (2, 1, 1))
SYSTEMS = ("torchvision", "detops, optimized")


def worker(system: str, threads: int, batch: int, connection: Any) -> None:
    """Answers a duration with image count and seconds; exits when the connection is closed."""
    from detectors import CONFIG_NAMES, MASK, detector, detops_detector, noise_image

    import detops

    torch.set_num_threads(threads)
    model = detector(MASK)
    if system != "torchvision":
        model = detops.optimize(detops_detector(model, CONFIG_NAMES[MASK]).eval())
    images = [noise_image()] * batch
    with torch.inference_mode():
        model(images)
        connection.send("ready")
        while (seconds := connection.recv()) is not None:
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                model(images)
                count += batch
            connection.send(count / (time.perf_counter() - began))


class WorkerGroup:
    """Processes that run a system with one setting."""

    def __init__(self, system: str, processes: int, threads: int, batch: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for _ in range(processes):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=worker, args=(system, threads, batch, child_end))
            process.start()
            self.connections.append(parent_end)
            self.processes.append(process)
        for connection in self.connections:
            connection.recv()

    def run(self, seconds: float) -> float:
        """Returns the images per second of all processes."""
        for connection in self.connections:
            connection.send(seconds)
        return sum(connection.recv() for connection in self.connections)

    def end(self) -> None:
        for connection, process in zip(self.connections, self.processes, strict=True):
            connection.send(None)
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="seconds per row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="page to put the table into, between its marks")
    args = parser.parse_args()
    found: dict[tuple[Any, ...], list[float]] = {}
    for system in SYSTEMS:
        rows = {(system, *setting): WorkerGroup(system, *setting) for setting in SETTINGS}
        for _ in range(args.rounds):
            for key, row in rows.items():
                found.setdefault(key, []).append(row.run(args.seconds))
        for row in rows.values():
            row.end()
    rates = {key: statistics.median(each) for key, each in found.items()}
    lines = [
        "| system | processes | threads per process | batch size | images per second |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, key))} | {rate:.2f} |" for key, rate in rates.items()),
    ]
    print(*lines, sep="\n")
    if args.page:
        text = f"Mask R-CNN, R50-FPN, 800 x 1333, {describe_machine(torch.device('cpu')).name}:\n\n"
        table = "\n".join(lines) + "\n"
        args.page.write_text(fill(args.page.read_text(), "throughput", text + table))


if __name__ == "__main__":
    main()
