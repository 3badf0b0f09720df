"""Runs every op once on a GPU, forward and backward: small enough for compute-sanitizer.

python tests/support/cuda_smoke.py                      # each call once
python tests/support/cuda_smoke.py --report file.json   # also counts synchronisations
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch
from call import Call
from calls import CALLS
from torch import Tensor

SYNCHRONISATION_WARNING = "synchronizing CUDA operation"  # text of PyTorch's warning


def synchronisations(call: Call, device: str) -> int:
    """Counts the device synchronisations of one call and its backward pass.

    If a call must not synchronise, PyTorch stops it at the first synchronisation: the count is 1.
    """
    tensors = call.tensors(device)
    call.results(tensors)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn" if call.synchronisations else "error")
        try:
            call.results(tensors)
        except RuntimeError as error:
            if SYNCHRONISATION_WARNING not in str(error):
                raise
            return 1
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum(SYNCHRONISATION_WARNING in str(warning.message) for warning in caught)


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    """Returns whether two results are bitwise equal, including NaN."""
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(*(t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))
        for a, b in zip(one, other, strict=True)
    )


def repeats(call: Call, device: str, runs: int) -> bool:
    """Returns whether ``runs`` calls and their backward passes give the same bits."""
    tensors = call.tensors(device)
    first = call.results(tensors)
    return all(same_bits(first, call.results(tensors)) for _ in range(runs - 1))


def report(device: str, runs: int) -> dict[str, dict]:
    """Returns an entry per call name; a failed call has an ``error``."""
    found: dict[str, dict] = {}
    for call in CALLS:
        entry: dict = {"waits_allowed": call.synchronisations}
        try:
            entry["waits"] = synchronisations(call, device) if device != "cpu" else 0
            entry["repeats"] = repeats(call, device, runs)
            entry["runs"] = runs
        except RuntimeError as error:
            entry["error"] = str(error).splitlines()[0]
        found[call.name] = entry
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(arguments)
    if options.report is None:
        for call in CALLS:
            call.results(call.tensors(options.device))
        if options.device != "cpu":
            torch.cuda.synchronize()
        print(f"{len(CALLS)} calls")
        return 0
    found = report(options.device, options.runs)
    options.report.write_text(json.dumps(found, indent=1) + "\n")
    failed = [
        name
        for name, entry in found.items()
        if "error" in entry or entry["waits"] > entry["waits_allowed"] or not entry["repeats"]
    ]
    print(f"{len(found)} calls, {len(failed)} failed", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
