"""Ops accept a list of inputs and reject all others by name. See input_worker.py."""

import os
import subprocess
import sys

import pytest
import raw_calls
import torch
from fuzz.case import SANITIZED, SANITIZER_OPTIONS
from paths import SUPPORT, environment

pytestmark = pytest.mark.slow

GROUPS = 4
OPS = raw_calls.schema_ops()


def test_raw_calls_cover_every_op():
    assert sorted(raw_calls.calls()) == OPS


def test_every_raw_call_passes_all_arguments():
    for name in OPS:
        args = raw_calls.arguments(name)
        op = getattr(torch.ops.detops, name)
        assert set(args) == {a.name for a in op.default._schema.arguments}, name
        op(**args)


def python(*arguments):
    """Runs Python in another process, with the detops under test."""
    options = os.environ.get("ASAN_OPTIONS", "")
    asan = f"{options}:{SANITIZER_OPTIONS}".strip(":")
    command = [sys.executable, *map(str, arguments)]
    inherited = environment(ASAN_OPTIONS=asan, OMP_NUM_THREADS="1")
    return subprocess.run(command, capture_output=True, text=True, env=inherited)


# The op needs about 430 MB of scratch memory; inputs and results are small in comparison.
OUT_OF_MEMORY = """
import resource
import torch
import detops
torch.set_num_threads(1)
side = 2000
x, weight = torch.zeros(1, 1, side, side), torch.zeros(1, 1, 3, 3)
offset, window = torch.zeros(1, 18, 1, 1).expand(1, 18, side, side), [[1, 1], [1, 1], [1, 1]]
offset = offset.contiguous()
size = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (size + (150 << 20), resource.RLIM_INFINITY))
try:
    torch.ops.detops.deform_conv2d_backward(
        x, x, offset, None, weight, None, *window, [True, False, False, False, False])
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or SANITIZED,
    reason="needs a memory limit per process",
)
def test_scratch_allocation_failure_raises_and_names_the_op():
    result = python("-c", OUT_OF_MEMORY)
    assert result.stdout.startswith("detops.deform_conv2d_backward: not enough memory"), result


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", range(GROUPS))
def test_ops_reject_invalid_arguments_by_name(group):
    result = python(SUPPORT / "input_worker.py", *OPS[group::GROUPS])
    lines = result.stdout.splitlines()
    errors = [line for line in lines if line.startswith("wrong: ")]
    if result.returncode != 0 or not lines or lines[-1] != "finished":
        last = [line for line in lines if line.startswith("case: ")][-1:]
        errors.append(f"exited with status {result.returncode} in {last}: {result.stderr[-3000:]}")
    assert not errors, "\n".join(errors)
