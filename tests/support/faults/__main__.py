"""``make faults``: disturbs commands at random moments, each fault dozens of times."""

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import detecting, serving, training
from .disk import can_mount
from .process import LIBC, M_ARENA_MAX, Fault
from .table import publish

FAULTS = {
    f"{command}: {name}": fault
    for command, module in (("train", training), ("detect", detecting), ("serve", serving))
    for name, fault in module.FAULTS.items()
}


def try_fault(kind: str, seed: int) -> tuple[bool, str]:
    """Tries a fault; returns whether it took effect, and an error message."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return FAULTS[kind](random.Random(f"{kind} {seed}"), Path(folder)), ""
        except Fault as fault:
            return True, f"{kind}, {seed}: {fault}"
        except Exception as error:  # a bug of the harness: other tries continue
            return True, f"{kind}, {seed}: {error!r}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--times", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--page", type=Path, help="page whose table of faults is updated")
    arguments = parser.parse_args()
    # Otherwise each thread has its own heap, and limits do not count its memory.
    LIBC.mallopt(M_ARENA_MAX, 1)
    failed = 0
    for kind in [k for k in FAULTS if arguments.only in k]:
        if "read-only" in kind and not can_mount():
            print(f"{kind}: skipped, this process may not mount", flush=True)
            continue
        began = time.monotonic()
        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(partial(try_fault, kind), range(arguments.times)))
        seconds = time.monotonic() - began
        errors = [error for _, error in outcomes if error]
        took_effect = sum(effect for effect, _ in outcomes)
        failed += len(errors)
        if arguments.page:
            publish(arguments.page, {kind: [len(outcomes), took_effect, len(errors)]})
        print(
            f"{kind}: {len(errors)} of {len(outcomes)} failed, {took_effect} took effect,"
            f" {seconds:.0f} s",
            flush=True,
        )
        print(
            *(f"    {error}" for error in errors), sep="\n", end="\n" if errors else "", flush=True
        )
    sys.exit(failed > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tempfile.tempdir = folder
        main()
