# SPDX-License-Identifier: MIT
"""Training and evaluation in two torchrun processes, compared with one process."""

import json

import distributed_worker as worker
import pytest
import torch
from torchrun import torchrun

from detops import cli
from detops.cli.options import DEFAULT_CONFIG
from detops.distributed import best_indices, gather_objects, mean_count, on_main, processes
from detops.engine import load_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns the folder in which two processes ran all scenarios except the kill."""
    folder = tmp_path_factory.mktemp("together")
    process = torchrun(worker.__file__, "together", folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


def curves(path):
    records = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def compare(records, expected_records, tolerance):
    assert len(records) == len(expected_records) > 0
    for record, expected in zip(records, expected_records, strict=True):
        assert record == pytest.approx(expected, abs=tolerance)


@pytest.mark.exhaustive
def test_two_processes_give_the_losses_of_one(folder, tmp_path):
    trainer = worker.detector_trainer(tmp_path)
    trainer.run()
    ours, theirs = curves(folder / "detector"), curves(tmp_path)
    compare(ours, theirs, 1e-4)
    # The loss falls, so the comparison is not trivial.
    assert theirs[-1]["loss"] < 0.9 * theirs[0]["loss"]
    state = load_checkpoint(folder / "detector" / "checkpoint.pt")["model"]
    for name, value in trainer.best_model.state_dict().items():
        torch.testing.assert_close(state[name], value, atol=1e-4, rtol=1e-3)


def test_two_processes_give_the_float64_curve_of_one(folder, tmp_path):
    worker.double_trainer(tmp_path).run()
    ours, theirs = curves(folder / "double"), curves(tmp_path)
    compare(ours, theirs, 1e-4)
    assert theirs[-1]["loss"] < 0.7 * theirs[0]["loss"]


def test_two_processes_accumulate_gradients_like_one(folder, tmp_path):
    worker.detector_trainer(tmp_path, worker.ACCUMULATION).run()
    compare(curves(folder / "pieces"), curves(tmp_path), 1e-4)


def test_head_may_lack_samples_in_one_process(folder):
    found = curves(folder / "branches")
    assert [record["step"] for record in found] == list(range(1, 11))
    assert any(record["loss_head"] > 0 for record in found)


def test_only_the_main_process_writes_files(folder):
    names = {file.name for file in (folder / "branches").iterdir()}
    checkpoints = {f"checkpoint_{step:06}.pt" for step in (4, 8, 10)}
    assert names == checkpoints | {"checkpoint.pt", "metrics.jsonl"}


def test_two_processes_evaluate_like_one(results):
    expected = json.loads(json.dumps(worker.evaluations()))
    assert 0 < expected["5"]["AP"] < 1 and 0 < expected["5"]["segm"]["AP"] < 1
    assert expected["5"]["detections"] == 5 and expected["0"]["AP"] is None
    assert [result["evaluations"] for result in results] == [expected, expected]


def test_collectives_share_errors_counts_and_best_indices(results):
    assert [result["rank"] for result in results] == [0, 1]
    assert [result["error"] for result in results] == ["nothing there"] * 2
    assert [result["best"] for result in results] == [[0], [1, 0]]
    assert [result["none"] for result in results] == [0.5, 0.5]
    assert [result["some"] for result in results] == [1.5, 1.5]


@pytest.mark.exhaustive
def test_killed_worker_is_restarted_without_losing_steps(folder, tmp_path):
    process = torchrun("--max-restarts", 1, worker.__file__, "killed", tmp_path)
    assert process.returncode == 0, process.stderr
    assert "exitcode: -9" in process.stderr
    assert (tmp_path / "starts").read_text().split() == ["0", "4"]
    ours, theirs = (
        load_checkpoint(path / "checkpoint.pt")
        for path in (tmp_path / "killed", folder / "branches")
    )
    assert repr(ours) == repr(theirs)
    for name, value in theirs["model"].items():
        assert torch.equal(ours["model"][name], value)
    assert curves(tmp_path / "killed") == curves(folder / "branches")


@pytest.mark.exhaustive
def test_train_command_runs_under_torchrun(tmp_path, capsys):
    run, found = tmp_path / "run", tmp_path / "found.json"
    arguments = [
        *("-m", "detops", "train", "--config", DEFAULT_CONFIG, "--output", run, "--resume"),
        *("SOLVER.MAX_ITER", 3, "SOLVER.IMS_PER_BATCH", 2, "SOLVER.TEST_PERIOD", 3),
        *("INPUT.TILE_SIZE", 0, "DATASETS.TEST", "[tree_crowns/val.json]"),
        *("INPUT.MIN_SIZE_TRAIN", "[96]", "INPUT.MIN_SIZE_TEST", 128),
    ]
    process = torchrun(*arguments, "--device", "cpu")
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("trained 3 steps") == 1
    assert {file.name for file in run.iterdir()} == {
        *("checkpoint_000003.pt", "checkpoint.pt"),
        *("metrics.jsonl", "results.json", "results.png", "plots", "best.pt", "weights.pt"),
    }
    assert ["evaluation" in record for record in curves(run)] == [False, False, True]
    metrics = json.loads((run / "results.json").read_text())["evaluation"]["val.json"]
    weights = ["--weights", str(run / "weights.pt"), "--device", "cpu"]
    assert cli.main(["eval", *weights, "--output", str(found)]) == 0, capsys.readouterr().err
    assert json.loads(found.read_text()) == metrics
    assert curves(run)[-1]["evaluation"]["val.json"] == metrics


def test_collectives_work_in_a_single_process():
    with processes("cpu") as device:
        assert device == torch.device("cpu")
    assert on_main(lambda: 3) == 3 and gather_objects("a") == ["a"]
    assert mean_count(0, torch.zeros(1)) == 1 and mean_count(5, torch.zeros(1)) == 5
    assert best_indices(torch.tensor([1.0, 3, 2]), 2).tolist() == [1, 2]
    assert best_indices(torch.zeros(0), 2).tolist() == []
