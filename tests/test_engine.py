# SPDX-License-Identifier: MIT
"""Checkpoints, training, evaluation, detection, pictures."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from detops.engine import (
    CheckpointError,
    Detector,
    Trainer,
    TrainingError,
    coco_metrics,
    load_checkpoint,
    save_weights,
)
from detops.engine.checkpoint import load_weights, save_checkpoint
from detops.engine.solver import learning_rate_factor
from detops.visualize import draw_detections


class Tiny(nn.Module):
    """Losses of a few parameters, with random numbers in it as the samplers of a detector have."""

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
    }
    return SimpleNamespace(
        SOLVER=SimpleNamespace(**(solver | changes)), DATALOADER=SimpleNamespace(NUM_WORKERS=0)
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
    whole = trainer(tmp_path / "whole", **changes)
    whole.run()

    killed = trainer(tmp_path / "parts", **changes)
    with pytest.raises(Stop):
        killed.run(stop_after(6))
    resumed = trainer(tmp_path / "parts", seed=99, **changes)
    resumed.resume()
    assert resumed.step == 4
    resumed.run()

    ours, theirs = (load_checkpoint(t.checkpoint_path) for t in (resumed, whole))
    assert repr(ours) == repr(theirs)
    for state in ("model", *(["raw_model"] if decay else [])):
        a = ours.get(state, ours["training"].get(state))
        b = theirs.get(state, theirs["training"].get(state))
        assert all(torch.equal(a[key], b[key]) for key in b)

    def lines(name):
        records = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in record.items() if k != "seconds"} for record in records]

    assert lines("parts") == lines("whole")
    assert [record["step"] for record in lines("whole")] == list(range(1, 9))


def test_average_follows_the_weights(tmp_path):
    run = trainer(tmp_path)
    run.run()
    raw, average = run.model.conv.weight, run.best_model.conv.weight
    assert not torch.equal(raw, average)
    assert (raw - average).abs().max() < 0.1
    assert torch.equal(run.model.norm.running_mean, run.best_model.norm.running_mean)
    assert trainer(tmp_path, EMA_DECAY=0.0).best_model is not None


def test_resume_refuses_what_does_not_fit(tmp_path):
    run = trainer(tmp_path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        run.resume()
    run.run()
    with pytest.raises(CheckpointError, match="categories"):
        trainer(tmp_path, names=("b",)).resume()
    with pytest.raises(CheckpointError, match="EMA_DECAY"):
        trainer(tmp_path, EMA_DECAY=0.0).resume()
    with pytest.raises(CheckpointError, match="optimizer"):
        trainer(tmp_path, **{"WARMUP_ITERS": 1}).__class__._load_optimizer(
            run, {"param_groups": [], "state": {}}, tmp_path
        )
    save_weights(tmp_path / "w.pt", run.model.state_dict(), "", ["a"])
    with pytest.raises(CheckpointError, match="weights only"):
        run.resume(tmp_path / "w.pt")


def test_loss_that_is_not_finite(tmp_path):
    run = trainer(tmp_path)
    with torch.no_grad():
        run.model.conv.bias[0] = math.nan
    with pytest.raises(TrainingError, match=r"step 1: .*loss_a nan.*BASE_LR"):
        run.run()
    assert not run.checkpoint_path.exists()


def test_schedules():
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


@pytest.mark.parametrize("change", [{"OPTIMIZER": "X"}, {"EMA_DECAY": 1.5}])
def test_bad_solver(tmp_path, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        trainer(tmp_path, **change)


def test_half_precision_weights(tmp_path):
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


def test_weights_that_do_not_fit_are_named():
    state = Tiny().state_dict()
    state["other"] = state.pop("conv.bias")
    state["conv.weight"] = torch.zeros(1, 2)
    with pytest.raises(CheckpointError) as caught:
        load_weights(Tiny(), state, "w.pt")
    text = str(caught.value)
    assert text.startswith("w.pt: does not fit the model")
    for part in ("lacks conv.bias", "unknown other", "conv.weight is [1, 2]", "[4, 3, 3, 3]"):
        assert part in text


class Evil:
    def __reduce__(self):
        return print, ("code of a checkpoint was run",)


def test_damaged_and_hostile_files(tmp_path, capsys):
    path = tmp_path / "w.pt"
    save_weights(path, Tiny().state_dict(), "", ["a"])
    good = path.read_bytes()
    for content in (b"", b"nonsense", good[: len(good) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            load_checkpoint(path)
        assert "\n" not in str(caught.value)
    torch.save({"config": Evil(), "names": [], "model": {}}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
    assert "code of a checkpoint" not in capsys.readouterr().out
    torch.save({"names": [], "model": {}}, path)
    with pytest.raises(CheckpointError, match="no 'config'"):
        load_checkpoint(path)


def test_interrupted_save_keeps_the_old_file(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"config": "old", "names": [], "model": {}})
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(path, {"config": lambda: 0})
    assert load_checkpoint(path)["config"] == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]


def crowd(count):
    """An image with so many objects, in rows."""
    boxes = [[12 * (i % 50), 12 * (i // 50), 10, 10] for i in range(count)]
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 600, "height": 600}],
        "categories": [{"id": 5, "name": "tree"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 5, "bbox": box, "area": 100, "iscrowd": 0}
            for i, box in enumerate(boxes)
        ],
    }


def answers(truth):
    return [
        {"image_id": 1, "category_id": 5, "bbox": a["bbox"], "score": 1 - i / 1000}
        for i, a in enumerate(truth["annotations"])
    ]


def test_perfect_detections():
    truth = crowd(20)
    metrics = coco_metrics(truth, answers(truth))
    assert [metrics[key] for key in ("AP", "AP50", "AP75", "AR")] == pytest.approx([1, 1, 1, 1])
    assert metrics["max_detections"] == 100 and metrics["objects"] == 20


def test_more_objects_than_the_standard_limit():
    truth = crowd(150)
    metrics = coco_metrics(truth, answers(truth))
    assert metrics["max_detections"] == 300 and metrics["AP"] == pytest.approx(1)
    assert metrics["standard"]["max_detections"] == 100
    assert metrics["standard"]["AR"] == pytest.approx(2 / 3)
    assert coco_metrics(truth, answers(truth), 30)["AR"] == pytest.approx(0.2)


def test_half_right_and_empty():
    truth = crowd(10)
    metrics = coco_metrics(truth, answers(truth)[:5])
    assert metrics["AP50"] == pytest.approx(51 / 101) and metrics["AR"] == pytest.approx(0.5)
    assert coco_metrics(truth, [])["AP"] == 0
    assert coco_metrics(crowd(0), [])["AP"] is None
    with pytest.raises(ValueError, match="max_detections"):
        coco_metrics(truth, [], 0)


class Bright(nn.Module):
    """Finds the one bright rectangle of each image."""

    def forward(self, images):
        found = []
        for image in images:
            rows, columns = (image[0] > 0.9).nonzero().unbind(1)
            box = [] if len(rows) == 0 else [[columns.min(), rows.min(), columns.max() + 1.0]]
            box = [[*b, rows.max() + 1.0] for b in box]
            boxes = torch.tensor(box).reshape(-1, 4)
            count = len(boxes)
            found.append(
                {
                    "boxes": boxes,
                    "labels": torch.ones(count, dtype=torch.int64),
                    "scores": torch.full((count,), 0.8),
                }
            )
        return found


@pytest.mark.parametrize("size", [(40, 50), (64, 64), (200, 150), (150, 301)])
@pytest.mark.parametrize("tile_size", [0, 64])
def test_detector(size, tile_size):
    image = torch.zeros(3, *size)
    image[:, 21:33, 17:36] = 1
    detector = Detector(Bright(), ["tree"], tile_size, 0.5, device="cpu")
    found = detector.detect(image)
    assert found["boxes"].tolist() == [[17, 21, 36, 33]]
    assert found["names"] == ["tree"] and found["labels"].tolist() == [1]
    assert len(detector.detect(image, 0.9)["scores"]) == 0
    assert detector.detect(torch.zeros(3, *size))["boxes"].shape == (0, 4)


def test_picture():
    image = torch.full((3, 60, 80), 90, dtype=torch.uint8)
    boxes = torch.tensor([[10.0, 10.0, 40.0, 50.0], [70.0, 0.0, 90.0, 20.0], [30.0, 30, 20, 20]])
    picture = draw_detections(
        image, boxes, torch.rand(3), torch.tensor([1, 2, 99]), ["a", "b", "c"], boxes[:1] + 4
    )
    assert picture.size == (160, 120) and picture.mode == "RGB"
    assert picture.getpixel((20, 60)) != (90, 90, 90)
    assert picture.getpixel((60, 80)) == (90, 90, 90)
    assert draw_detections(image, boxes[:0]).getpixel((5, 5)) == (90, 90, 90)


def test_picture_errors():
    image, boxes = torch.zeros(3, 9, 9), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"\[2, 5\]"):
        draw_detections(image, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="expected 2 scores"):
        draw_detections(image, boxes, torch.zeros(3))
    with pytest.raises(ValueError, match="finite"):
        draw_detections(image, boxes * math.nan)
