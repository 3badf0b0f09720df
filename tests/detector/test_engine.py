# SPDX-License-Identifier: MIT
"""Checkpoints and training."""

import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from distributed_worker import detector_trainer
from torch import nn

from detops.engine import (
    CheckpointError,
    Trainer,
    TrainingError,
    load_checkpoint,
    save_weights,
)
from detops.engine.checkpoint import load_weights, save_checkpoint
from detops.engine.solver import learning_rate_factor

pytestmark = pytest.mark.slow


class Tiny(nn.Module):
    """Computes losses of a few parameters with random numbers, like the samplers of a detector."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images, targets):
        features = self.norm(self.conv(torch.stack(images)))
        noise = torch.rand(features.shape)
        return {
            "loss_a": (features * noise - 1).square().mean(),
            "loss_b": self.conv.bias.abs().sum(),
        }


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.rand(3, 8, 8) * (index + 1), {"labels": torch.tensor([index])}


def settings(**changes):
    solver = {
        "OPTIMIZER": "ADAMW",
        "SCHEDULE": "COSINE",
        "CLIP_GRADIENTS": 1.0,
        "EMA_DECAY": 0.9,
        "IMS_PER_BATCH": 2,
        "BASE_LR": 0.01,
        "BIAS_LR_FACTOR": 2,
        "MAX_ITER": 8,
        "STEPS": (5, 7),
        "GAMMA": 0.1,
        "WARMUP_FACTOR": 0.1,
        "WARMUP_ITERS": 2,
        "WARMUP_METHOD": "linear",
        "WEIGHT_DECAY": 0.01,
        "WEIGHT_DECAY_BIAS": 0.0,
        "MOMENTUM": 0.9,
        "CHECKPOINT_PERIOD": 4,
        "TEST_PERIOD": 0,
        "ACCUMULATE": 1,
    }
    return SimpleNamespace(
        SOLVER=SimpleNamespace(**(solver | changes)),
        DATALOADER=SimpleNamespace(NUM_WORKERS=0, ASPECT_RATIO_GROUPING=True),
        DTYPE="float32",
    )


def trainer(output, seed=0, names=("a",), **changes):
    torch.manual_seed(seed)
    return Trainer(Tiny(), Squares(), settings(**changes), "X: 1\n", names, output)


class Stop(Exception):
    pass


def stop_after(step):
    def report(record):
        if record["step"] == step:
            raise Stop

    return report


@pytest.mark.parametrize("changes", [{}, {"OPTIMIZER": "SGD", "SCHEDULE": "MULTISTEP"}])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_resumed_run_equals_uninterrupted_run(tmp_path, changes, decay):
    changes = changes | {"EMA_DECAY": decay}
    uninterrupted = trainer(tmp_path / "whole", **changes)
    uninterrupted.run()

    killed = trainer(tmp_path / "parts", **changes)
    with pytest.raises(Stop):
        killed.run(stop_after(6))
    resumed = trainer(tmp_path / "parts", seed=99, **changes)
    resumed.resume()
    assert resumed.step == 4
    resumed.run()

    actual, expected = (load_checkpoint(t.checkpoint_path) for t in (resumed, uninterrupted))
    assert repr(actual) == repr(expected)
    for state in ("model", *(["raw_model"] if decay else [])):
        a = actual.get(state, actual["training"].get(state))
        b = expected.get(state, expected["training"].get(state))
        assert all(torch.equal(a[key], b[key]) for key in b)

    def lines(name):
        records = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in record.items() if k != "seconds"} for record in records]

    assert lines("parts") == lines("whole")
    assert [record["step"] for record in lines("whole")] == list(range(1, 9))


def test_averaged_weights_follow_the_weights(tmp_path):
    run = trainer(tmp_path)
    run.run()
    raw, average = run.model.conv.weight, run.best_model.conv.weight
    assert not torch.equal(raw, average)
    assert (raw - average).abs().max() < 0.1
    assert torch.equal(run.model.norm.running_mean, run.best_model.norm.running_mean)
    assert trainer(tmp_path, EMA_DECAY=0.0).best_model is not None


class Deterministic(nn.Module):
    """Computes a mean over the batch, without random numbers or batch statistics."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images, targets):
        return {"loss_a": (self.conv(torch.stack(images)) - 1).square().mean()}


def read_losses(path):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in lines]


@pytest.mark.parametrize("pieces", [2, 4])
def test_accumulated_gradients_equal_those_of_the_full_batch(tmp_path, pieces):
    for name, count in (("whole", 1), ("pieces", pieces)):
        torch.manual_seed(0)
        changes = {"IMS_PER_BATCH": 4, "ACCUMULATE": count, "CLIP_GRADIENTS": 0.5}
        cfg = settings(**changes)
        Trainer(Deterministic(), Squares(), cfg, "X: 1\n", ["a"], tmp_path / name).run()
    full_batch, pieces = (
        load_checkpoint(tmp_path / name / "checkpoint.pt")["model"] for name in ("whole", "pieces")
    )
    for name, value in full_batch.items():
        torch.testing.assert_close(pieces[name], value, atol=1e-5, rtol=0)
    assert read_losses(tmp_path / "pieces") == pytest.approx(
        read_losses(tmp_path / "whole"), abs=1e-5
    )


def test_periodic_evaluation_leaves_training_unchanged(tmp_path):
    trainer(tmp_path / "without").run()
    run = trainer(tmp_path / "with", TEST_PERIOD=3)
    models = []

    def evaluate(model):
        models.append(model)
        run.model.eval()
        torch.rand(5)
        return {"val.json": {"AP": run.step / 10, "AR": None}}

    run.run(evaluate=evaluate)
    assert models == [run.best_model] * 2 and run.model.training
    assert read_losses(tmp_path / "with") == read_losses(tmp_path / "without")
    lines = list(map(json.loads, (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()))
    evaluations = {line["step"]: line["evaluation"] for line in lines if "evaluation" in line}
    assert evaluations == {step: {"val.json": {"AP": step / 10, "AR": None}} for step in (3, 6)}


def test_tensorboard_receives_losses_and_metrics(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = trainer(tmp_path, MAX_ITER=3, TEST_PERIOD=2)
    run.tensorboard = True
    run.run(evaluate=lambda model: {"v": {"AP": 0.25, "AR": None, "standard": {"AP": 0.5}}})
    found = events.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in found.Scalars("loss")] == pytest.approx(read_losses(tmp_path))
    (event,) = found.Scalars("evaluation/v/standard/AP")
    assert (event.step, event.value) == (2, 0.5)
    assert "evaluation/v/AR" not in found.Tags()["scalars"]


def test_missing_tensorboard_raises_an_install_hint(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = trainer(tmp_path)
    run.tensorboard = True
    with pytest.raises(ImportError, match="pip install tensorboard"):
        run.run()


def test_boxes_and_losses_stay_float32_under_bfloat16(tmp_path):
    run = detector_trainer(tmp_path, ["DTYPE", "bfloat16", "SOLVER.MAX_ITER", 4])
    dtypes = {"features": set(), "boxes": set(), "losses": set()}
    run.model.backbone.register_forward_hook(
        lambda module, args, out: dtypes["features"].update(x.dtype for x in out)
    )
    run.model.rpn.register_forward_hook(
        lambda module, args, out: dtypes["boxes"].update(x.dtype for x in out[0])
    )
    run.model.register_forward_hook(
        lambda module, args, out: dtypes["losses"].update(x.dtype for x in out.values())
    )
    run.run()
    assert dtypes == {
        "features": {torch.bfloat16},
        "boxes": {torch.float32},
        "losses": {torch.float32},
    }
    detector_trainer(tmp_path / "full", ["SOLVER.MAX_ITER", 4]).run()
    assert read_losses(tmp_path) != read_losses(tmp_path / "full")
    assert read_losses(tmp_path) == pytest.approx(read_losses(tmp_path / "full"), rel=0.1)


def test_resume_rejects_checkpoints_that_do_not_fit(tmp_path):
    run = trainer(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        run.resume()
    run.run()
    with pytest.raises(CheckpointError, match="categories"):
        trainer(tmp_path, names=("b",)).resume()
    with pytest.raises(CheckpointError, match="EMA_DECAY"):
        trainer(tmp_path, EMA_DECAY=0.0).resume()
    with pytest.raises(CheckpointError, match="exp_avg.*SGD has momentum_buffer.*OPTIMIZER"):
        trainer(tmp_path, OPTIMIZER="SGD").resume()
    with pytest.raises(CheckpointError, match=r"step 8 is above SOLVER.MAX_ITER 7"):
        trainer(tmp_path, MAX_ITER=7).resume()
    save_weights(tmp_path / "w.pt", run.model.state_dict(), "", ["a"])
    with pytest.raises(
        CheckpointError, match="contains only weights; training cannot resume from it"
    ):
        run.resume(tmp_path / "w.pt")


def test_non_finite_loss_raises_and_saves_nothing(tmp_path):
    run = trainer(tmp_path)
    with torch.no_grad():
        run.model.conv.bias[0] = math.nan
    with pytest.raises(TrainingError, match=r"step 1: .*loss_a.* not finite.*BASE_LR"):
        run.run()
    assert not run.checkpoint_path.exists()


def test_learning_rate_follows_the_schedule():
    multistep = settings(SCHEDULE="MULTISTEP").SOLVER
    factors = [learning_rate_factor(multistep, step) for step in range(8)]
    assert factors == pytest.approx([0.1, 0.55, 1, 1, 1, 0.1, 0.1, 0.01])
    multistep.WARMUP_METHOD = "constant"
    assert learning_rate_factor(multistep, 1) == pytest.approx(0.1)
    cosine = settings().SOLVER
    assert learning_rate_factor(cosine, 2) == 1
    assert learning_rate_factor(cosine, 5) == pytest.approx(0.5)
    assert learning_rate_factor(cosine, 8) == pytest.approx(0)
    with pytest.raises(ValueError, match="SCHEDULE"):
        learning_rate_factor(settings(SCHEDULE="X").SOLVER, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"OPTIMIZER": "X"},
        {"EMA_DECAY": 1.5},
        {"SCHEDULE": "X"},
        {"WARMUP_METHOD": "X"},
        {"STEPS": (7, 5)},
        {"ACCUMULATE": 0},
    ],
)
def test_invalid_solver_settings_are_rejected(tmp_path, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        trainer(tmp_path, **change).run()
    cfg = settings()
    cfg.DTYPE = "float16"
    with pytest.raises(ValueError, match="DTYPE: expected float32 or bfloat16"):
        Trainer(Tiny(), Squares(), cfg, "", ["a"], tmp_path)


@pytest.mark.parametrize("method", ["linear", "constant"])
def test_multistep_schedule_matches_maskrcnn_benchmark(method):
    """Writes out the formula: base rate x warm-up x gamma for each passed milestone."""
    solver = settings(
        SCHEDULE="MULTISTEP",
        STEPS=(3, 6),
        GAMMA=0.1,
        WARMUP_ITERS=4,
        WARMUP_FACTOR=1 / 3,
        WARMUP_METHOD=method,
    ).SOLVER
    for step in range(10):
        warmup = 1.0
        if step < 4:
            warmup = 1 / 3 + (1 - 1 / 3) * step / 4 if method == "linear" else 1 / 3
        expected = warmup * 0.1 ** ((step >= 3) + (step >= 6))
        assert learning_rate_factor(solver, step) == pytest.approx(expected)


def test_half_precision_weights_keep_batch_norm_in_float32(tmp_path):
    model = Tiny()
    model.norm.running_var.fill_(1e6)
    save_weights(tmp_path / "w.pt", model.state_dict(), "X: 1\n", ["a"], half=True)
    checkpoint = load_checkpoint(tmp_path / "w.pt")
    assert checkpoint["model"]["conv.weight"].dtype == torch.float16
    assert checkpoint["model"]["norm.running_var"].dtype == torch.float32
    assert checkpoint["names"] == ["a"] and checkpoint["config"] == "X: 1\n"
    loaded = Tiny()
    load_weights(loaded, checkpoint["model"], "w.pt")
    assert loaded.conv.weight.dtype == torch.float32
    assert torch.allclose(loaded.conv.weight, model.conv.weight, atol=1e-3)


def test_load_weights_names_every_mismatch():
    state = Tiny().state_dict()
    state["other"] = state.pop("conv.bias")
    state["conv.weight"] = torch.zeros(1, 2)
    with pytest.raises(CheckpointError) as caught:
        load_weights(Tiny(), state, "w.pt")
    text = str(caught.value)
    assert text.startswith("w.pt: does not fit the model")
    for part in ("lacks conv.bias", "unknown other", "conv.weight is [1, 2]", "[4, 3, 3, 3]"):
        assert part in text


class MaliciousPickle:
    def __reduce__(self):
        return print, ("code of a checkpoint was run",)


def test_damaged_and_malicious_files_are_rejected(tmp_path, capsys):
    path = tmp_path / "w.pt"
    save_weights(path, Tiny().state_dict(), "", ["a"])
    intact = path.read_bytes()
    for content in (b"", b"nonsense", intact[: len(intact) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)
    path.write_bytes(b"\xff\xd8\xff\xe0")  # the first bytes of a JPEG
    with pytest.raises(
        CheckpointError, match=r"or not a checkpoint \(not what torch.save writes\); copy"
    ):
        load_checkpoint(path)
    torch.save({"config": MaliciousPickle(), "names": [], "model": {}}, path)
    with pytest.raises(
        CheckpointError, match=r"\(it contains \S*print, which is no tensor or plain value\)"
    ):
        load_checkpoint(path)
    assert "code of a checkpoint" not in capsys.readouterr().out
    torch.save({"names": [], "model": {}}, path)
    with pytest.raises(CheckpointError, match="it lacks 'config'"):
        load_checkpoint(path)


def test_interrupted_save_keeps_the_old_file(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"config": "old", "names": [], "model": {}})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(path, {"config": lambda: 0})
    assert load_checkpoint(path)["config"] == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]
