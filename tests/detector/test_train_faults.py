# SPDX-License-Identifier: MIT
"""Training with non-finite losses, failing data, or a full disk."""

import io
import json
import os
import signal

import pytest
import torch
from rich.console import Console
from test_engine import Deterministic, Squares, Tiny, settings, trainer
from torch.utils.data import get_worker_info

from detops.data import AnnotationError
from detops.engine import CheckpointError, OutputError, Trainer, TrainingError, load_checkpoint
from detops.engine.data_failure import data_failure
from detops.engine.metrics import read_metrics
from detops.engine.progress import training_progress
from detops.engine.train import MAX_SKIPPED

pytestmark = pytest.mark.slow


class Poisoned(Tiny):
    """Returns, at some steps, a non-finite loss, or a finite loss with a non-finite gradient."""

    def __init__(self, losses=(), gradients=()):
        super().__init__()
        self.losses, self.gradients, self.calls = losses, gradients, 0

    def forward(self, images, targets):
        self.calls += 1
        found = super().forward(images, targets)
        if self.calls in self.losses:
            # Like an overflow in a layer, this also ruins the batch norm statistics.
            self.norm(self.conv(torch.stack(images) * torch.inf))
            found["loss_a"] = found["loss_a"] * torch.nan
        if self.calls in self.gradients:
            found["loss_b"] = found["loss_b"] + (self.conv.weight.sum() * 0).sqrt()
        return found


def poisoned(output, losses=(), gradients=(), **changes):
    torch.manual_seed(0)
    model = Poisoned(losses, gradients)
    return Trainer(model, Squares(), settings(**changes), "X: 1\n", ["a"], output)


def parse_strict(text):
    """Parses JSON like other programs, without NaN."""

    def reject(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=reject)


def snapshot(run):
    state = run.optimizer.state_dict()["state"]
    return [v.clone() for v in run._state()] + [
        v.clone() for s in state.values() for v in s.values()
    ]


@pytest.mark.parametrize("kind", ["losses", "gradients"])
def test_non_finite_step_is_skipped(tmp_path, kind):
    run = poisoned(tmp_path, **{kind: (3, 6)})
    states = [snapshot(run)]
    run.run(lambda record: states.append(snapshot(run)))
    lines = [parse_strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "skipped" in line] == [3, 6] and run.skipped == 2
    for step, line in enumerate(lines, start=1):
        same = len(states[step]) == len(states[step - 1]) and all(
            map(torch.equal, states[step], states[step - 1])
        )
        assert same == (step in (3, 6))
        if same:
            assert line["grad_norm"] is None and (line["loss_a"] is None) == (kind == "losses")
    # The step number advances, and with it the data and the learning rate.
    assert run.step == 8 and all(value.isfinite().all() for value in states[-1])


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_reports_skipped_steps(terminal):
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=200, highlight=False)
    record = {"step": 3, "loss": None, "lr": 0.1, "grad_norm": None, "skipped": True, "seconds": 1}
    with training_progress(console, 100) as report:
        report(record)
        report({"step": 5, "loss": 2.5, "lr": 0.1, "seconds": 1.0})
    assert "step 3 skipped: loss, grad_norm not finite" in output.getvalue()
    assert "loss 2.500" in output.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_progress_is_not_cut_on_a_narrow_terminal(width):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=width, highlight=False)
    losses = {f"loss_{name}": 0.5 for name in ("objectness", "rpn_box_reg", "classifier", "mask")}
    with training_progress(console, 100, images=2) as report:
        report({"step": 5, "loss": 2.5, **losses, "lr": 0.1, "seconds": 1.0})
    shown = " ".join(output.getvalue().split())
    for part in ("mask 0.500", "lr 1.00e-01", "1.00 s/step", "2.0 images/s", " MB"):
        assert part in shown


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint_*"))


def test_checkpoint_due_at_a_skipped_step_is_saved_later(tmp_path):
    poisoned(tmp_path, losses=(4, 5), MAX_ITER=7).run()
    assert checkpoint_names(tmp_path) == ["checkpoint_000006.pt", "checkpoint_000007.pt"]
    # A non-finite last step keeps all earlier progress.
    poisoned(tmp_path / "end", losses=(8,)).run()
    assert checkpoint_names(tmp_path / "end") == ["checkpoint_000004.pt", "checkpoint_000008.pt"]


def test_run_that_ends_at_a_skipped_step_is_saved(tmp_path):
    run = poisoned(tmp_path, losses=(6,), TEST_PERIOD=3)
    assert run.run(evaluate=lambda model: {}, should_end=lambda: run.step == 6)
    assert checkpoint_names(tmp_path) == ["checkpoint_000004.pt", "checkpoint_000006.pt"]


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_diverging_run_stops_with_advice(tmp_path, decay):
    changes = {"MAX_ITER": 30, "CHECKPOINT_PERIOD": 2, "EMA_DECAY": decay}
    run = poisoned(tmp_path, losses=range(7, 30), **changes)
    with pytest.raises(TrainingError) as caught:
        run.run()
    text = str(caught.value)
    # The weights of step 6 gave the first loss that was not finite.
    for part in (
        f"step {6 + MAX_SKIPPED}: training has diverged",
        f"loss_a, grad_norm not finite at {MAX_SKIPPED} steps in a row",
        "checkpoint_000006.diverged has diverged and is no longer used",
        f"continue from {tmp_path / 'checkpoint_000004.pt'} with --resume",
        "BASE_LR (now 0.01)",
        "WARMUP_ITERS (now 2)",
        "CLIP_GRADIENTS (now 1, 0 is none)",
    ):
        assert part in text
    assert checkpoint_names(tmp_path) == [
        *("checkpoint_000002.pt", "checkpoint_000004.pt", "checkpoint_000006.diverged")
    ]
    resumed = trainer(tmp_path, **changes)
    resumed.resume()
    assert resumed.step == 4
    resumed.run()
    assert load_checkpoint(resumed.checkpoint_path)["training"]["step"] == 30


def test_divergence_from_the_start_advises_a_lower_rate(tmp_path):
    with pytest.raises(TrainingError, match="in a row; restart with a lower SOLVER.BASE_LR"):
        poisoned(tmp_path, losses=range(1, 30), MAX_ITER=30).run()


def deterministic_trainer(output, **changes):
    torch.manual_seed(0)
    cfg = settings(**{"OPTIMIZER": "SGD", "SCHEDULE": "MULTISTEP", "STEPS": ()} | changes)
    return Trainer(Deterministic(), Squares(), cfg, "X: 1\n", ["a"], output)


def test_resuming_with_a_lower_rate_recovers_from_divergence(tmp_path):
    """After a good start, the learning rate makes every step overshoot."""
    changes = {"MAX_ITER": 60, "CHECKPOINT_PERIOD": 10, "CLIP_GRADIENTS": 0.0, "EMA_DECAY": 0.0}
    changes |= {"STEPS": (20,), "GAMMA": 1e8}
    with pytest.raises(TrainingError, match=r"continue from .*checkpoint_000020.pt with --resume"):
        deterministic_trainer(tmp_path, **changes).run()
    recovered = deterministic_trainer(tmp_path, **changes | {"GAMMA": 1.0, "BASE_LR": 0.005})
    recovered.resume()
    assert recovered.step == 20
    recovered.run()
    losses = [
        parse_strict(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(losses) == 60 and losses[-1] < losses[19] < losses[0]


def test_non_finite_weights_are_never_saved(tmp_path):
    run = trainer(tmp_path)
    run.run()
    before = (tmp_path / "checkpoint_000008.pt").read_bytes()
    with torch.no_grad():
        run.model.conv.bias[0] = torch.inf
    run.step = 9
    with pytest.raises(TrainingError, match="the weights are not finite and are not saved"):
        run.save()
    assert checkpoint_names(tmp_path) == ["checkpoint_000004.pt", "checkpoint_000008.pt"]
    assert (tmp_path / "checkpoint_000008.pt").read_bytes() == before


class Fatal(Squares):
    """While a flag file exists, one image kills its data worker or cannot be read."""

    def __init__(self, flag, kill):
        self.flag, self.kill, self.items = flag, kill, 0

    def __getitem__(self, index):
        self.items += 1
        if self.items == 9 and self.flag.exists():
            if self.kill:
                assert get_worker_info() is not None
                os.kill(os.getpid(), signal.SIGKILL)
            raise AnnotationError("late.jpg: no such image file")
        return super().__getitem__(index)


def fatal(folder, kill, workers):
    cfg = settings(CHECKPOINT_PERIOD=100)
    cfg.DATALOADER.NUM_WORKERS = workers
    torch.manual_seed(0)
    return Trainer(Tiny(), Fatal(folder / "flag", kill), cfg, "", ["a"], folder / "run")


@pytest.mark.parametrize(
    ("kill", "workers", "message"),
    [
        (
            True,
            1,
            r"a data worker died \(.*\): .* out of memory; lower DATALOADER.NUM_WORKERS \(now 1\)",
        ),
        (False, 1, r"late.jpg: no such image file"),
        (False, 0, r"late.jpg: no such image file"),
    ],
)
def test_failing_data_loses_no_step(tmp_path, kill, workers, message):
    (tmp_path / "flag").touch()
    run = fatal(tmp_path, kill, workers)
    with pytest.raises(TrainingError, match=rf"^step \d: {message}.* is saved, --resume") as caught:
        run.run()
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    # Batches that a killed worker had prepared may be lost.
    steps_done = run.step
    assert steps_done in ((1, 2, 3, 4) if kill else (4,))
    assert f"{tmp_path}/run/checkpoint_{steps_done:06}.pt is saved" in str(caught.value)
    (tmp_path / "flag").unlink()
    resumed = fatal(tmp_path, kill, 0)
    resumed.resume()
    assert resumed.step == steps_done
    resumed.run()
    uninterrupted = trainer(tmp_path / "whole", CHECKPOINT_PERIOD=100)
    uninterrupted.run()
    ours, theirs = (load_checkpoint(r.checkpoint_path)["model"] for r in (resumed, uninterrupted))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EOFError(), "EOFError"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (ConnectionRefusedError(), "ConnectionRefusedError"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "exited unexpectedly"),
    ],
)
def test_every_error_of_a_dead_worker_is_recognised(error, reason):
    """The error depends on what the worker had handed over when it died."""
    message = data_failure(error, 1)
    assert message.startswith("a data worker died (") and f"{reason}): usually because" in message


def test_code_errors_are_not_reported_as_data_failures(tmp_path):
    run = trainer(tmp_path)
    run.dataset = [None] * 3
    with pytest.raises(TypeError):
        run.run()


@pytest.fixture
def full_disk(tmp_path):
    """Replaces a file of the folder by a link to /dev/full, where every write fails."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")

    def fill(name):
        (tmp_path / name).unlink(missing_ok=True)
        os.symlink("/dev/full", tmp_path / name)

    return fill


def test_full_disk_keeps_the_earlier_checkpoints(tmp_path, full_disk):
    run = trainer(tmp_path)
    with pytest.raises(OutputError) as caught:
        run.run(lambda record: full_disk("checkpoint.pt.tmp") if record["step"] == 6 else None)
    assert str(caught.value) == (
        f"{tmp_path}/checkpoint_000008.pt: cannot be written: No space left on device; the "
        "previous file is intact"
    )
    assert checkpoint_names(tmp_path) == ["checkpoint_000004.pt"]
    assert not (tmp_path / "checkpoint.pt.tmp").is_symlink() and os.path.exists("/dev/full")
    resumed = trainer(tmp_path)
    resumed.resume()
    resumed.run()
    assert checkpoint_names(tmp_path) == ["checkpoint_000004.pt", "checkpoint_000008.pt"]


def test_full_disk_while_writing_metrics_raises(tmp_path, full_disk):
    full_disk("metrics.jsonl")
    with pytest.raises(OutputError, match="metrics.jsonl: cannot be written: No space left"):
        trainer(tmp_path).run()


def test_resume_keeps_metrics_when_the_disk_is_full(tmp_path, full_disk):
    trainer(tmp_path).run()
    lines = (tmp_path / "metrics.jsonl").read_text()
    run = trainer(tmp_path)
    run.resume(tmp_path / "checkpoint_000004.pt")
    full_disk("metrics.jsonl.tmp")
    with pytest.raises(OutputError, match="metrics.jsonl: cannot be written: No space left"):
        run.run()
    assert (tmp_path / "metrics.jsonl").read_text() == lines


@pytest.mark.parametrize(
    "damage", [b"3", b"[1]", b'{"step": null}', b'{"step": "1"}', b"\xff", b'{"step": 2, "lo']
)
def test_damaged_metrics_line_is_skipped(tmp_path, damage):
    file = tmp_path / "metrics.jsonl"
    run = trainer(tmp_path)
    run.run()
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([lines[0], damage, *lines[2:], b""]))
    assert [each["step"] for each in read_metrics(file)] == [1, *range(3, len(lines) + 1)]
    resumed = trainer(tmp_path)
    resumed.resume()
    resumed.run()
    assert file.read_bytes().splitlines() == [lines[0], *lines[2:]]


def test_resume_without_a_checkpoint_raises(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint file"):
        trainer(tmp_path / "missing").resume()
