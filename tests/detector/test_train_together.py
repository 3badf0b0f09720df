# SPDX-License-Identifier: MIT
"""Training faults in two processes: both make the same decision."""

import json
import signal
import subprocess
import sys
import time

import faults_worker
import pytest
import tiny_training as tiny
from paths import environment
from torchrun import torchrun

from detops.engine import load_checkpoint

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    process = torchrun(faults_worker.__file__, folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """Returns the results of both processes."""
    return json.loads((folder / "results.json").read_text())


def test_all_processes_skip_the_same_steps(folder, results):
    first, second = (result["skipped"] for result in results)
    assert first == second
    assert (first["step"], first["done"], first["skipped"]) == (10, True, 2)
    lines = map(json.loads, (folder / "skipped" / "metrics.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines if "skipped" in line] == [3, 5]
    assert load_checkpoint(folder / "skipped" / "checkpoint.pt")["training"]["step"] == 10


def test_all_processes_detect_divergence(folder, results):
    first, second = (result["diverged"] for result in results)
    assert first == second and first["step"] == 10
    assert "loss, loss_body, grad_norm not finite at 10 steps in a row; restart" in first["error"]
    assert [path.name for path in (folder / "diverged").iterdir()] == ["metrics.jsonl"]


def test_all_processes_stop_after_the_same_step(folder, results):
    first, second = (result["stopped"] for result in results)
    assert first == {"step": 3, "done": False, "received": None}
    assert second == {"step": 3, "done": False, "received": signal.SIGTERM}
    assert load_checkpoint(folder / "stopped" / "checkpoint.pt")["training"]["step"] == 3


def test_sigterm_to_torchrun_saves_a_checkpoint(tmp_path):
    arguments = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "detops", *tiny.arguments(tmp_path, "SOLVER.MAX_ITER", "100000")),
    ]
    metrics = tmp_path / "metrics.jsonl"
    with subprocess.Popen(
        arguments, env=environment(OMP_NUM_THREADS="1"), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 200
            while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
            process.terminate()
            errors = process.communicate(timeout=100)[1]
        finally:
            process.kill()
    steps = metrics.read_text().count("\n")
    saved = load_checkpoint(tmp_path / "checkpoint.pt")
    assert saved["training"]["step"] == steps
    lines = [line for line in errors.splitlines() if line.startswith("detops")]
    assert lines == [
        f"detops: stopped by SIGTERM after step {steps}; {tmp_path}/checkpoint_{steps:06}.pt is "
        "saved, --resume continues from it"
    ]
