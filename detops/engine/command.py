# SPDX-License-Identifier: MIT
"""The commands `detops train` and `detops eval`, alone or in each of several processes."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import ConcatDataset

from ..config import ConfigError, dump_config
from ..data import DetectionDataset, load_datasets
from ..data.seeding import make_deterministic, seed_all
from ..data.transforms import TrainTransform
from ..distributed import is_main, on_main, processes
from ..modeling import build_detection_model
from ..modeling.build import num_classes
from .checkpoint import CheckpointError, load_checkpoint, save_weights
from .detect import Detector
from .evaluate import evaluate
from .progress import counting_progress, training_progress
from .train import Trainer
from .weights import load_weights_into


def train(
    cfg: Any,
    output: Path,
    console: Console,
    messages: Console,
    images: Path | None = None,
    skip_broken: bool = False,
    resume: bool = False,
    half: bool = False,
    seed: int = 0,
    deterministic: bool = False,
    tensorboard: bool = False,
    device: str | None = None,
) -> None:
    """Trains, rates the result on DATASETS.TEST, and writes everything.

    Args:
        cfg: the config.
        output: folder for the results.
        console: for results.
        messages: for progress.
        images: folder of the images, if not that of the annotation files.
        skip_broken: leave broken annotations out instead of stopping.
        resume: go on from the checkpoint in the folder, if there is one.
        half: write the weights in float16.
        seed: of all random numbers.
        deterministic: same seed, same bits.
        tensorboard: write metrics for TensorBoard too.
        device: where to train; CUDA if there is any by default.

    Raises:
        CheckpointError: there is a checkpoint, and not to be resumed from or not fit for it.
        ConfigError: the number of classes is not that of the data.
        AnnotationError, TrainingError: see there.
    """
    if deterministic:
        make_deterministic()
    with _processes(device, console, messages) as place:
        there = on_main((output / "checkpoint.pt").exists)
        if there and not resume:
            raise CheckpointError(
                f"{output}/checkpoint.pt is there already: give --resume to go on from it, "
                "or another --output"
            )
        parts = {"masks": cfg.MODEL.MASK_ON, "keypoints": cfg.MODEL.KEYPOINT_ON}
        train_sets = _load(cfg.DATASETS.TRAIN, images, skip_broken, messages, **parts)
        tests = cfg.DATASETS.TEST
        test_sets = _load(tests, images, skip_broken, messages, **parts) if tests else []
        names = train_sets[0].names
        _check_classes(cfg, train_sets[0])
        _tell_few_proposals(cfg, messages)
        for dataset in train_sets:
            dataset.transform = TrainTransform(cfg, dataset.keypoint_names)
        seed_all(seed)
        model = build_detection_model(cfg)
        if cfg.MODEL.WEIGHT and not there:
            epsilon = cfg.MODEL.WEIGHT_BN_EPSILON
            used = load_weights_into(model, cfg.MODEL.WEIGHT, batch_norm_epsilon=epsilon)
            messages.print(str(used))
        data: ConcatDataset = ConcatDataset(train_sets)
        text = dump_config(cfg)
        trainer = Trainer(model, data, cfg, text, names, output, place, seed, tensorboard)
        if there:
            trainer.resume()
        elif resume:
            messages.print(f"{output}/checkpoint.pt: not there, training starts from step 0")
        results = _run(trainer, test_sets, messages)
        weights = output / "weights.pt"
        if is_main():
            save_weights(weights, trainer.best_model.state_dict(), text, names, half)
        # From the file, so that what is rated is what will be used, its precision included.
        checkpoint = on_main(lambda: load_checkpoint(weights))
        detector = Detector.from_loaded(checkpoint, weights, place)
        results["evaluation"] = _evaluate_all(detector, test_sets, messages)
        for name, metrics in results["evaluation"].items():
            _print_metrics(metrics, name, console)
        if is_main():
            write_json(output / "results.json", results)
        console.print(f"trained {results['steps']} steps in {results['seconds']:.0f} s")
        console.print(str(weights))


def rate(
    weights: Path,
    data: Path,
    console: Console,
    messages: Console,
    images: Path | None = None,
    output: Path | None = None,
    max_detections: int | None = None,
    skip_broken: bool = False,
    device: str | None = None,
) -> None:
    """Rates a detector on a data set.

    Args:
        weights: checkpoint to detect with.
        data: annotation file.
        console: for the table.
        messages: for progress.
        images: folder of the images, if not that of the annotation file.
        output: JSON file for the results.
        max_detections: see `coco_metrics`.
        skip_broken: leave broken annotations out instead of stopping.
        device: where to detect; CUDA if there is any by default.

    Raises:
        CheckpointError, AnnotationError: see there.
        ValueError: the detector's categories are not the data's.
    """
    with _processes(device, console, messages) as place:
        checkpoint = on_main(lambda: load_checkpoint(weights))
        detector = Detector.from_loaded(checkpoint, weights, place)
        # Masks and keypoints are rated where both the detector and the data have them.
        masks = None if getattr(detector.model, "with_masks", False) else False
        keypoints = None if getattr(detector.model, "num_keypoints", 0) else False
        (dataset,) = _load(
            [str(data)], images, skip_broken, messages, masks=masks, keypoints=keypoints
        )
        with counting_progress(messages, "evaluating") as report:
            metrics = evaluate(detector, dataset, max_detections, report)
        _print_metrics(metrics, dataset.path.name, console)
        if output is not None and is_main():
            write_json(output, metrics)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as a JSON file, in a folder that is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _processes(device: str | None, console: Console, messages: Console) -> Iterator[torch.device]:
    """Joins the processes there are; only the main one's consoles print."""
    with processes(device) as place:
        console.quiet = messages.quiet = not is_main()
        try:
            yield place
        finally:
            console.quiet = messages.quiet = False


def _run(trainer: Trainer, tests: list[DetectionDataset], messages: Console) -> dict[str, Any]:
    began, done_before = time.perf_counter(), trainer.step
    times = []
    with training_progress(messages, trainer.solver.MAX_ITER, trainer.step) as report:

        def note(record: dict[str, Any]) -> None:
            times.append(record["seconds"])
            report(record)

        def evaluate_now(model: nn.Module) -> dict[str, Any]:
            detector = Detector.from_config(model, trainer.names, trainer.cfg, trainer.device)
            return _evaluate_all(detector, tests)

        trainer.run(note, evaluate_now if tests else None)
    return {
        "steps": trainer.step - done_before,
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_per_step": round(statistics.median(times), 4) if times else None,
    }


def _evaluate_all(
    detector: Detector, datasets: list[DetectionDataset], messages: Console | None = None
) -> dict[str, Any]:
    """Metrics by name of the annotation file, or by its path where two have the same name."""
    names = Counter(dataset.path.name for dataset in datasets)
    results = {}
    for dataset in datasets:
        name = dataset.path.name if names[dataset.path.name] == 1 else str(dataset.path)
        # Silent during training, whose own progress is on the terminal.
        console = messages or Console(quiet=True)
        with counting_progress(console, f"evaluating {name}") as report:
            results[name] = evaluate(detector, dataset, report=report)
    return results


def _load(
    paths: Sequence[str],
    images: Path | None,
    skip_broken: bool,
    messages: Console,
    **parts: bool | None,
) -> list[DetectionDataset]:
    on_error: Literal["raise", "skip"] = "skip" if skip_broken else "raise"
    datasets = load_datasets(list(paths), images, on_error, **parts)
    for dataset in datasets:
        _tell_skipped(dataset, messages)
    return datasets


def _tell_skipped(dataset: DetectionDataset, messages: Console) -> None:
    if dataset.skipped:
        counts = ", ".join(f"{count} x {kind}" for kind, count in dataset.skipped.items())
        messages.print(f"{dataset.path}: skipped {counts}")


def _check_classes(cfg: Any, dataset: DetectionDataset) -> None:
    (key, classes), expected = num_classes(cfg), len(dataset.names) + 1
    if classes != expected:
        raise ConfigError(
            f"{key}: expected {expected} (background and "
            f"{expected - 1} categories of {dataset.path}), got {classes}"
        )


def _tell_few_proposals(cfg: Any, messages: Console) -> None:
    """Warns of a limit meant for two images a process that is applied to the whole batch."""
    rpn, images = cfg.MODEL.RPN, cfg.SOLVER.IMS_PER_BATCH
    each, drawn = rpn.FPN_POST_NMS_TOP_N_TRAIN // images, cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE
    if rpn.USE_FPN and rpn.FPN_POST_NMS_PER_BATCH and each < drawn:
        messages.print(
            f"MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN: {rpn.FPN_POST_NMS_TOP_N_TRAIN} proposals for the "
            f"whole batch are {each} for each of {images} images, fewer than the {drawn} that "
            "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE draws; 1000 for each image are usual"
        )


def _print_metrics(metrics: dict[str, Any], title: str, console: Console) -> None:
    keys = ("AP", "AP50", "AP75", "AR")
    table = Table("of", "detections counted per image", *keys, title=title)
    rated = {"boxes": metrics, "masks": metrics.get("segm"), "keypoints": metrics.get("keypoints")}
    for name, of_kind in rated.items():
        if of_kind is None:
            continue
        rows = {row["max_detections"]: row for row in (of_kind["standard"], of_kind)}
        for limit, row in rows.items():
            values = ("-" if row[key] is None else f"{row[key]:.3f}" for key in keys)
            table.add_row(name, str(limit), *values)
    console.print(table)
