# SPDX-License-Identifier: MIT
"""Checkpoints, training, evaluation, detection, pictures."""

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
    Detector,
    Trainer,
    TrainingError,
    coco_metrics,
    load_checkpoint,
    save_weights,
)
from detops.engine.checkpoint import load_weights, save_checkpoint
from detops.engine.evaluate import to_coco
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


class Plain(nn.Module):
    """No random numbers, no statistics: means of the batch and nothing else."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images, targets):
        return {"loss_a": (self.conv(torch.stack(images)) - 1).square().mean()}


def losses_of(path):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in lines]


@pytest.mark.parametrize("pieces", [2, 4])
def test_pieces_of_a_batch_give_the_gradient_of_the_whole(tmp_path, pieces):
    for name, count in (("whole", 1), ("pieces", pieces)):
        torch.manual_seed(0)
        changes = {"IMS_PER_BATCH": 4, "ACCUMULATE": count, "CLIP_GRADIENTS": 0.5}
        cfg = settings(**changes)
        Trainer(Plain(), Squares(), cfg, "X: 1\n", ["a"], tmp_path / name).run()
    whole, pieces = (
        load_checkpoint(tmp_path / name / "checkpoint.pt")["model"] for name in ("whole", "pieces")
    )
    for name, value in whole.items():
        torch.testing.assert_close(pieces[name], value, atol=1e-5, rtol=0)
    assert losses_of(tmp_path / "pieces") == pytest.approx(losses_of(tmp_path / "whole"), abs=1e-5)


def test_evaluation_now_and_then(tmp_path):
    trainer(tmp_path / "without").run()
    run = trainer(tmp_path / "with", TEST_PERIOD=3)
    models = []

    def rate(model):
        models.append(model)
        run.model.eval()
        torch.rand(5)
        return {"val.json": {"AP": run.step / 10, "AR": None}}

    run.run(evaluate=rate)
    assert models == [run.best_model] * 2 and run.model.training
    assert losses_of(tmp_path / "with") == losses_of(tmp_path / "without")
    lines = list(map(json.loads, (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()))
    rated = {line["step"]: line["evaluation"] for line in lines if "evaluation" in line}
    assert rated == {step: {"val.json": {"AP": step / 10, "AR": None}} for step in (3, 6)}


def test_tensorboard(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = trainer(tmp_path, MAX_ITER=3, TEST_PERIOD=2)
    run.tensorboard = True
    run.run(evaluate=lambda model: {"v": {"AP": 0.25, "AR": None, "standard": {"AP": 0.5}}})
    found = events.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in found.Scalars("loss")] == pytest.approx(losses_of(tmp_path))
    (event,) = found.Scalars("evaluation/v/standard/AP")
    assert (event.step, event.value) == (2, 0.5)
    assert "evaluation/v/AR" not in found.Tags()["scalars"]


def test_tensorboard_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = trainer(tmp_path)
    run.tensorboard = True
    with pytest.raises(ImportError, match="pip install tensorboard"):
        run.run()


def test_bfloat16_stays_out_of_boxes_and_losses(tmp_path):
    run = detector_trainer(tmp_path, ["DTYPE", "bfloat16", "SOLVER.MAX_ITER", 4])
    seen = {"features": set(), "boxes": set(), "losses": set()}
    run.model.backbone.register_forward_hook(
        lambda module, args, out: seen["features"].update(x.dtype for x in out)
    )
    run.model.rpn.register_forward_hook(
        lambda module, args, out: seen["boxes"].update(x.dtype for x in out[0])
    )
    run.model.register_forward_hook(
        lambda module, args, out: seen["losses"].update(x.dtype for x in out.values())
    )
    run.run()
    assert seen == {
        "features": {torch.bfloat16},
        "boxes": {torch.float32},
        "losses": {torch.float32},
    }
    detector_trainer(tmp_path / "full", ["SOLVER.MAX_ITER", 4]).run()
    assert losses_of(tmp_path) != losses_of(tmp_path / "full")
    assert losses_of(tmp_path) == pytest.approx(losses_of(tmp_path / "full"), rel=0.1)


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
def test_bad_solver(tmp_path, change):
    with pytest.raises(ValueError, match=next(iter(change))):
        trainer(tmp_path, **change).run()
    cfg = settings()
    cfg.DTYPE = "float16"
    with pytest.raises(ValueError, match="DTYPE: expected float32 or bfloat16"):
        Trainer(Tiny(), Squares(), cfg, "", ["a"], tmp_path)


@pytest.mark.parametrize("method", ["linear", "constant"])
def test_schedule_is_the_familys(method):
    """Base rate x warm-up x gamma for each milestone passed, written out."""
    solver = settings(
        SCHEDULE="MULTISTEP",
        STEPS=(3, 6),
        GAMMA=0.1,
        WARMUP_ITERS=4,
        WARMUP_FACTOR=1 / 3,
        WARMUP_METHOD=method,
    ).SOLVER
    for step in range(10):
        warm = 1.0
        if step < 4:
            warm = 1 / 3 + (1 - 1 / 3) * step / 4 if method == "linear" else 1 / 3
        expected = warm * 0.1 ** ((step >= 3) + (step >= 6))
        assert learning_rate_factor(solver, step) == pytest.approx(expected)


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


def with_masks(truth, shrink=0):
    """The same with a polygon of each box, narrower by so many pixels."""
    entries = [
        a | {"segmentation": [[x, y, x + w - shrink, y, x + w - shrink, y + h, x, y + h]]}
        for a in truth["annotations"]
        for x, y, w, h in [a["bbox"]]
    ]
    return truth | {"annotations": entries}


def test_masks_are_rated_beside_boxes():
    truth = with_masks(crowd(4), shrink=4)
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in boxes_of(truth)]).float(),
        "labels": torch.ones(4, dtype=torch.int64),
        "scores": torch.ones(4),
        "masks": torch.zeros(4, 1, 600, 600, dtype=torch.bool),
    }
    for mask, (x, y, w, h) in zip(found["masks"], boxes_of(truth), strict=True):
        mask[0, y : y + h, x : x + w] = True
    metrics = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "segm"))
    # Masks of 10 x 10 pixels on objects of 6 x 10: their IoU is 0.6, right at three of ten limits.
    assert metrics["AP"] == pytest.approx(1)
    assert metrics["segm"]["AP50"] == pytest.approx(1) and metrics["segm"]["AP75"] == 0
    assert metrics["segm"]["standard"]["max_detections"] == 100
    assert coco_metrics(truth, [], iou_types=("bbox", "segm"))["segm"]["AP"] == 0
    assert coco_metrics(crowd(4), [], iou_types=("segm",))["segm"]["AP"] is None
    with pytest.raises(ValueError, match=r"iou_types: .*\['mask'\]"):
        coco_metrics(truth, [], iou_types=("mask",))


def boxes_of(truth):
    return [a["bbox"] for a in truth["annotations"]]


@pytest.mark.parametrize("count", [17, 5])
def test_keypoints_are_rated_beside_boxes(count):
    truth = crowd(3)
    points = torch.rand(3, count, 3) * 8
    points[:, :, 2] = 2
    for annotation, own in zip(truth["annotations"], points, strict=True):
        annotation["keypoints"] = own.flatten().tolist()
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in boxes_of(truth)]).float(),
        "labels": torch.ones(3, dtype=torch.int64),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
        "keypoints": points.clone(),
    }
    right = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "keypoints"))
    assert right["keypoints"]["AP"] == pytest.approx(1)
    assert right["keypoints"]["standard"]["max_detections"] == 20
    found["keypoints"] += 50
    wrong = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "keypoints"))
    assert wrong["keypoints"]["AP"] == 0 and wrong["AP"] == pytest.approx(1)


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
