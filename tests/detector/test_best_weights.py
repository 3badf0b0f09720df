# SPDX-License-Identifier: MIT
"""Best weights and early stopping, also across a killed run."""

import json

import pytest
import tiny_training as tiny
import torch
from torch import nn

from detops import cli
from detops.engine import load_checkpoint
from detops.engine.best_weights import FILE_NAME, BestWeights, mean_average_precision
from detops.engine.train import Trainer

TEST = ["DATASETS.TEST", '["shapes:test?length=2&size=48"]', "SOLVER.TEST_PERIOD", "1"]


class Solver:
    PATIENCE, TEST_PERIOD = 2, 10


def fail_on_report(line):
    raise AssertionError(line)


def offer(best, step, ap, value=0.0):
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, value)
    best.update(step, {"a": {"AP": ap}}, model, "X: 1\n", ["cat"])


def test_best_weights_are_replaced_only_by_a_higher_ap(tmp_path):
    best = BestWeights(tmp_path, False, fail_on_report)
    for step, ap in ((10, None), (20, 0.2), (30, 0.1), (40, 0.2), (50, 0.3)):
        offer(best, step, ap, value=step)
        kept = {10: None, 20: 20, 30: 20, 40: 20, 50: 50}[step]
        assert (best.step or None) == kept
        if kept is None:
            assert not (tmp_path / FILE_NAME).exists()
        else:
            found = load_checkpoint(tmp_path / FILE_NAME)
            assert (found["step"], found["model"]["weight"].item()) == (kept, kept)
    assert best.ap == found["AP"] == 0.3


def test_training_stops_when_patience_runs_out(tmp_path):
    best = BestWeights(tmp_path, False, fail_on_report)
    offer(best, 20, 0.2)
    assert [best.patience_exhausted(step, Solver) for step in (20, 30, 39, 40, 50)] == [
        False
    ] * 3 + [True] * 2
    # The run may resume from a checkpoint that is older than the best weights.
    assert not best.patience_exhausted(10, Solver)
    # A run that resumes without the file, lost or damaged, starts without a rating.
    assert not BestWeights(tmp_path / "lost", True, fail_on_report).patience_exhausted(500, Solver)
    no_patience = type("", (), {"PATIENCE": 0, "TEST_PERIOD": 10})
    assert not best.patience_exhausted(1000, no_patience)


def test_best_weights_survive_a_resume_unless_damaged(tmp_path):
    offer(BestWeights(tmp_path, False, fail_on_report), 20, 0.2)
    best = BestWeights(tmp_path, True, fail_on_report)
    assert (best.step, best.ap) == (20, 0.2)
    offer(best, 20, 0.2, value=7)
    assert load_checkpoint(best.path)["model"]["weight"].item() == 0
    reports = []
    content = bytearray(best.path.read_bytes())
    content[len(content) // 2] ^= 1
    best.path.write_bytes(content)
    best = BestWeights(tmp_path, True, reports.append)
    assert (best.step, best.ap) == (0, None)
    assert len(reports) == 1 and "best.pt: damaged" in reports[0] and "skipped" in reports[0]
    BestWeights(tmp_path, False, fail_on_report)
    assert not best.path.exists()


def test_mean_ap_skips_datasets_without_ap():
    assert mean_average_precision({}) is None
    assert mean_average_precision({"a": {"AP": None}}) is None
    assert mean_average_precision({"a": {"AP": None}, "b": {"AP": 0.0}}) == 0


@pytest.fixture
def fixed_ap(monkeypatch):
    """Makes evaluations after steps 1, 2, ... return these APs; the last one repeats."""

    def set_ap(*values):
        def evaluate(detector, dataset, max_detections=None, report=None, keep=None):
            step = trainers[-1].step if trainers else len(values)
            ap = values[min(step, len(values)) - 1]
            row = {"AP": ap, "AP50": ap, "AP75": ap, "AR": ap, "max_detections": 100}
            return row | {"standard": row, "classes": {}}

        monkeypatch.setattr("detops.engine.command.evaluate", evaluate)

    trainers = []
    run = Trainer.run

    def recording_run(self, *arguments):
        trainers.append(self)
        return run(self, *arguments)

    monkeypatch.setattr(Trainer, "run", recording_run)
    return set_ap


def results(folder):
    return json.loads((folder / "results.json").read_text())


def history(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], *(m["AP"] for m in line["evaluation"].values())) for line in lines]


@pytest.mark.slow
def test_training_stops_early_and_resumes_with_more_patience(tmp_path, capsys, fixed_ap):
    fixed_ap(0.1, 0.3, 0.2, 0.3, 0.9)
    assert tiny.train(tmp_path, *TEST, "SOLVER.PATIENCE", "2") == 0
    output = capsys.readouterr()
    assert "stopped after step 4: no higher AP in 2 evaluations (SOLVER.PATIENCE)" in output.err
    assert "step 2: shapes:test: AP 0.300  AP50 0.300" in output.err
    assert "images/s" in output.err and "MB" in output.err
    assert "  loss " in output.err and "loss" not in output.out
    assert f"{tmp_path}/best.pt: AP 0.300, after step 2" in output.out
    assert results(tmp_path)["best"] == {"step": 2, "AP": 0.3}
    assert load_checkpoint(tmp_path / "checkpoint.pt")["training"]["step"] == 4
    assert history(tmp_path) == [(1, 0.1), (2, 0.3), (3, 0.2), (4, 0.3)]
    assert (tmp_path / "results.png").stat().st_size > 1000
    # The run is finished: resuming it with the same patience ends at once.
    assert tiny.train(tmp_path, *TEST, "SOLVER.PATIENCE", "2", "--resume") == 0
    assert load_checkpoint(tmp_path / "checkpoint.pt")["training"]["step"] == 4
    # With more patience it continues.
    assert tiny.train(tmp_path, *TEST, "SOLVER.PATIENCE", "3", "--resume") == 0
    assert results(tmp_path)["best"] == {"step": 5, "AP": 0.9}
    assert [step for step, _ in history(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_killed_run_resumes_with_its_best_weights(tmp_path, fixed_ap, monkeypatch):
    values = (0.1, 0.5, 0.8, 0.2, 0.3, 0.4)
    fixed_ap(*values)
    assert tiny.train(tmp_path / "whole", *TEST) == 0

    class Killed(BaseException):
        pass

    losses = Trainer._losses

    def kill(self, *arguments):
        if self.step == 3:
            raise Killed
        return losses(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_losses", kill)
        with pytest.raises(Killed):
            tiny.train(tmp_path / "killed", *TEST)
    # The checkpoint is from step 2, the best weights are from step 3.
    assert tiny.train(tmp_path / "killed", *TEST, "--resume") == 0
    uninterrupted, killed = (
        load_checkpoint(tmp_path / run / "best.pt") for run in ("whole", "killed")
    )
    assert (
        (uninterrupted["step"], uninterrupted["AP"]) == (killed["step"], killed["AP"]) == (3, 0.8)
    )
    assert all(
        torch.equal(value, killed["model"][key]) for key, value in uninterrupted["model"].items()
    )
    expected = list(enumerate(values, start=1))
    assert history(tmp_path / "whole") == history(tmp_path / "killed") == expected


@pytest.mark.slow
def test_eval_loads_best_weights_and_writes_plots(tmp_path, capsys):
    """Runs real evaluations: after two steps the detector may find nothing, but it is evaluated."""
    assert tiny.train(tmp_path, *TEST, "SOLVER.MAX_ITER", "2") == 0
    output = capsys.readouterr()
    assert "loss_" not in output.err and ", classifier " in output.err
    data = ["--data", "shapes:test?length=2&size=48"]
    weights = ["--weights", str(tmp_path / "best.pt"), "--device", "cpu"]
    assert cli.main(["eval", *weights, *data, "--plots", str(tmp_path / "rated")]) == 0
    names = ["confusion_matrix.png", "detections.png", "precision_recall.png"]
    folders = [tmp_path / "rated", *(tmp_path / "plots").iterdir()]
    assert len(folders) == 2
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == names


def test_patience_requires_evaluations(tmp_path, capsys):
    # The check precedes opening the datasets, which may take long.
    missing_data = ["DATASETS.TRAIN", '["none.json"]', *TEST]
    for overrides in (
        ["SOLVER.TEST_PERIOD", "1"],
        TEST[:2],
        [*missing_data, "SOLVER.TEST_PERIOD", "0"],
    ):
        assert tiny.train(tmp_path / "run", *overrides, "SOLVER.PATIENCE", "2") == 2
        assert "SOLVER.PATIENCE: expected 0 without SOLVER.TEST_PERIOD" in capsys.readouterr().err
