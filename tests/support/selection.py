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
LARGE_VARIANTS = (
    "many RoIs",
    "large map",
    "a band of rows that moves down",
    "one RoI taller than the band",
    "several rows at a time",
    "a row at a time",
)
MISSING = pytest.StashKey[dict[str, Counter]]()  # cases per file, keyed by the missing requirement


def file_name(item):
    return item.path.relative_to(ROOT).as_posix()


def parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_applicable(item):
    """Skips instruction sets for CUDA kernels; emulation tests only these kernels."""
    params = parameters(item)
    on_gpu = params.get("device") == "cuda"
    if (detops._C.emulated or on_gpu) and params.get("isa", ISAS[0]) != ISAS[0]:
        return False
    if not detops._C.emulated:
        return True
    return (
        "device" in item.fixturenames and not on_gpu and params.get("variant") not in LARGE_VARIANTS
    )


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
        if fixture in parameters(item)
        and all(parameters(item).get(name, value) == value for name, value in first.items())
    ]


@pytest.hookimpl(tryfirst=True)  # runs before marks select tests
def pytest_collection_modifyitems(config, items):
    selected = {item for item in items if is_applicable(item)}
    by_isa = Counter(map(file_name, repeated_by("isa", selected)))
    counts = config.stash[MISSING] = {name: by_isa for name in ISAS if name not in isas()}
    if not HAS_GPU:
        missing = set(filter(needs_gpu, selected))
        counts["a GPU"] = Counter(map(file_name, missing.union(repeated_by("device", selected))))
        selected -= missing
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = [item for item in items if item in selected]


def pytest_sessionfinish(session):
    """Sends the counts of a worker to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["missing"] = {k: dict(v) for k, v in session.config.stash.get(MISSING, {}).items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Each worker collects all tests and counts the same ones; a crashed worker reports nothing."""
    node.config.stash[MISSING] = getattr(node, "workeroutput", {}).get("missing", {})


def pytest_terminal_summary(terminalreporter, config):
    for missing, counts in config.stash.get(MISSING, {}).items():
        if not counts:
            continue
        terminalreporter.section(f"{sum(counts.values())} cases need {missing} and did not run")
        for file, count in sorted(counts.items()):
            terminalreporter.line(f"{count:6} {file}")
