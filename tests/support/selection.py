"""Selects tests: a pytest plugin, registered by tests/conftest.py.

Without a GPU, cases that need one do not run, and are counted per file at the end of the run.
"""

from collections import Counter

import pytest
from fuzz.case import ISAS
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
WITHOUT_GPU = pytest.StashKey[Counter]()


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


def has_case_for_gpu(item):
    """Returns whether `device` would have made another case for a GPU."""
    return "device" in params_of(item) and params_of(item).get("isa", ISAS[0]) == ISAS[0]


@pytest.hookimpl(tryfirst=True)  # runs before marks select tests
def pytest_collection_modifyitems(config, items):
    kept = {item for item in items if is_of_use(item)}
    if not HAS_GPU:
        lacking = {item for item in kept if NEEDS_GPU.mark in item.iter_markers("skipif")}
        others = set() if detops._C.emulated else filter(has_case_for_gpu, kept)
        config.stash[WITHOUT_GPU] = Counter(map(file_of, lacking.union(others)))
        kept -= lacking
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session):
    """Sends the counts of a worker to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["without_gpu"] = dict(session.config.stash.get(WITHOUT_GPU, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Each worker collects all tests, and counts the same ones."""
    node.config.stash[WITHOUT_GPU] = Counter(node.workeroutput.get("without_gpu", {}))


def pytest_terminal_summary(terminalreporter, config):
    counts = config.stash.get(WITHOUT_GPU, Counter())
    if counts:
        terminalreporter.section(f"{counts.total()} cases need a GPU and did not run")
        for file, count in sorted(counts.items()):
            terminalreporter.line(f"{count:6} {file}")
