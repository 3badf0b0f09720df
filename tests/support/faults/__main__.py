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


def once(kind: str, seed: int) -> tuple[bool, str]:
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
    parser.add_argument("--page", type=Path, help="the page that tells how often each was tried")
    arguments = parser.parse_args()
    # Otherwise each thread has its own heap, and limits do not count its memory.
    LIBC.mallopt(M_ARENA_MAX, 1)
    wrong = 0
    for kind in [k for k in FAULTS if arguments.only in k]:
        if "read-only" in kind and not can_mount():
            print(f"{kind}: not tried, this process may not mount", flush=True)
            continue
        began = time.monotonic()
        with ThreadPoolExecutor(arguments.jobs) as pool:
            found = list(pool.map(partial(once, kind), range(arguments.times)))
        took = time.monotonic() - began
        told, bit = [what for _, what in found if what], sum(bit for bit, _ in found)
        wrong += len(told)
        if arguments.page:
            publish(arguments.page, {kind: [len(found), bit, len(told)]})
        print(f"{kind}: {len(told)} of {len(found)} wrong, {bit} bit, {took:.0f} s", flush=True)
        print(*(f"    {each}" for each in told), sep="\n", end="\n" if told else "", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
