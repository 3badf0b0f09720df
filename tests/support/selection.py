"""Selects tests: a pytest plugin, registered by tests/conftest.py.

Cases that need a GPU or an instruction set that this machine lacks do not run. The end of the run
counts them per file.
"""

from collections import Counter

import pytest
from fuzz.case import ISAS, isas
from needs import HAS_GPU, NEEDS_GPU
from paths import ROOT

import detops

# CPU kernel variants for large inputs: slow to emulate, and without a counterpart in CUDA kernels.
LARGE_WAYS = (
    "many RoIs",
    "large map",
    "a band of rows that moves down",
    "one RoI taller than the band",
    "several rows at a time",
    "a row at a time",
)
LACKING = pytest.StashKey[dict[str, Counter]]()  # cases per file, keyed by the missing requirement


def file_of(item):
    return item.path.relative_to(ROOT).as_posix()


def params_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_of_use(item):
    """Skips instruction sets for CUDA kernels; emulation tests only these kernels."""
    params = params_of(item)
    on_gpu = params.get("device") == "cuda"
    if (detops._C.emulated or on_gpu) and params.get("isa", ISAS[0]) != ISAS[0]:
        return False
    if not detops._C.emulated:
        return True
    return "device" in item.fixturenames and not on_gpu and params.get("way") not in LARGE_WAYS


def needs_gpu(item):
    return NEEDS_GPU.mark in item.iter_markers("skipif")


def repeated_by(fixture, items):
    """Returns the cases that the fixture repeats for a GPU, or for each instruction set."""
    if detops._C.emulated:
        return []
    first = {"isa": ISAS[0], "device": "cpu"}
    return [
        item
        for item in items
        if fixture in params_of(item)
        and all(params_of(item).get(name, value) == value for name, value in first.items())
    ]


@pytest.hookimpl(tryfirst=True)  # runs before marks select tests
def pytest_collection_modifyitems(config, items):
    kept = {item for item in items if is_of_use(item)}
    by_isa = Counter(map(file_of, repeated_by("isa", kept)))
    counts = config.stash[LACKING] = {name: by_isa for name in ISAS if name not in isas()}
    if not HAS_GPU:
        lacking = set(filter(needs_gpu, kept))
        counts["a GPU"] = Counter(map(file_of, lacking.union(repeated_by("device", kept))))
        kept -= lacking
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session):
    """Sends the counts of a worker to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["lacking"] = {k: dict(v) for k, v in session.config.stash.get(LACKING, {}).items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Each worker collects all tests and counts the same ones; a crashed worker reports nothing."""
    node.config.stash[LACKING] = getattr(node, "workeroutput", {}).get("lacking", {})


def pytest_terminal_summary(terminalreporter, config):
    for lacking, counts in config.stash.get(LACKING, {}).items():
        if not counts:
            continue
        terminalreporter.section(f"{sum(counts.values())} cases need {lacking} and did not run")
        for file, count in sorted(counts.items()):
            terminalreporter.line(f"{count:6} {file}")
