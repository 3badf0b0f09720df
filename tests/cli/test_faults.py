"""`make faults` detects lost results and missing error messages."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from faults import process, table, training
from paths import environment

from detops.engine.checkpoint import save_checkpoint


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["detect: kill -9", "serve: clients leave"])
def test_commands_survive_a_fault(fault):
    command = [sys.executable, "-m", "faults", "--times", "1", "--jobs", "1", "--only", fault]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(f"{fault}: 0 of 1 failed")


def test_other_weights_missing_lines_and_leftovers_are_faults(tmp_path):
    def run(name, weight, steps):
        folder = tmp_path / name
        folder.mkdir()
        content = {"config": "", "names": [], "model": {"w": torch.tensor(weight)}}
        save_checkpoint(folder / "checkpoint.pt", content)
        lines = [f'{{"step": {step}}}\n' for step in steps]
        (folder / "metrics.jsonl").write_text("".join(lines))
        return folder

    all_steps = range(1, training.STEPS + 1)
    expected = run("whole", 1.0, all_steps)
    same = run("same", 1.0, all_steps)
    training.require_same(same, expected)
    with pytest.raises(process.Fault, match="different weights"):
        training.require_same(run("other", 2.0, all_steps), expected)
    with pytest.raises(process.Fault, match="metrics have the steps"):
        training.require_same(run("short", 1.0, all_steps[1:]), expected)
    (same / "checkpoint.pt.tmp").touch()
    with pytest.raises(process.Fault, match="left behind"):
        training.require_same(same, expected)


class FunctionCommand(process.Command):
    def __init__(self, log, execute):
        super().__init__(log)
        self.execute = execute


def test_command_must_report_its_error_without_a_traceback(tmp_path):
    def run_to_end(work):
        command = FunctionCommand(tmp_path / "log", work)
        command.log.unlink(missing_ok=True)
        command.start()
        return command, command.wait()

    command, status = run_to_end(lambda: print("detops: error: the disk is full") or 2)
    assert status == 2
    command.require_reported("disk")
    with pytest.raises(process.Fault, match="not reported: memory"):
        command.require_reported("memory")
    command, status = run_to_end(lambda: print("detops: memory") or 1 / 0)
    assert status == 99
    with pytest.raises(process.Fault, match="the log contains a traceback"):
        command.require_reported("memory")


def test_hits_and_misses_of_a_fault_are_distinguished(tmp_path):
    command = FunctionCommand(tmp_path / "log", lambda: time.sleep(100))
    command.start()
    assert command.send_signal(signal.SIGKILL)
    command = FunctionCommand(tmp_path / "log", lambda: 0)
    command.start()
    command.wait()
    assert not command.fails_with("disk")
    command = FunctionCommand(
        tmp_path / "log", lambda: print("detops: error: the disk is full") or 2
    )
    command.start()
    assert command.fails_with("disk")


def test_jumping_clock_moves_forward_or_both_ways():
    calls = [0, 0]
    forward = training.jumping(lambda: 1.0, 0.0, calls, 0)
    both = training.jumping(lambda: 1.0, -training.YEARS, calls, 1)
    found = [[clock() for _ in range(100)] for clock in (forward, both)]
    assert found[0] == sorted(found[0]) and found[0][-1] > training.YEARS
    assert found[1] != sorted(found[1]) and calls == [100, 100]


def test_damaged_lines_are_not_counted_as_steps():
    assert training.read_steps(b'{"step": 1}\n{"step"\n\xff\n3\n{"step": 4}\n') == [1, 4]


def test_fault_counts_are_merged_into_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- faults: begin -->\n<!-- faults: end -->\n")
    table.publish(page, {"train: kill -9": [24, 21, 0], "serve: SIGTERM": [3, 3, 1]})
    table.publish(page, {"serve: SIGTERM": [24, 24, 0]})
    rows = page.read_text().splitlines()
    (tmp_path / "page.json").write_text('{"faults": {"serve: kill -9": [9, 0]}}')
    table.publish(page, {})
    assert "| `detops serve` | kill -9 | 9 | - | 0 |" in page.read_text()
    assert "| `detops train` | kill -9 | 24 | 21 | 0 |" in rows
    assert "| `detops serve` | SIGTERM | 24 | 24 | 0 |" in rows
