# SPDX-License-Identifier: MIT
"""The commands `detops train` and `detops eval`, in one process or several."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import ConcatDataset

from ..config import dump_config
from ..data import DetectionDataset, load_datasets
from ..data.catalog import distinct_names
from ..data.class_map import ClassMap
from ..data.seeding import make_deterministic, seed_all
from ..distributed import is_main, on_main, processes
from ..export.load import SUFFIXES
from ..modeling import build_detection_model
from .best_weights import BestWeights, check_patience
from .checkpoint import CheckpointError, OutputError, load_checkpoint, save_weights, writing
from .config_checks import check_classes, check_crops, doubtful_settings
from .detect import Detector
from .evaluate import evaluate, matched_category_ids
from .plots import has_matplotlib, plot_all, plot_training
from .progress import counting_progress, training_progress
from .published import TORCHVISION_UNSUPPORTED
from .run_folder import RunFolder
from .stop import Stopped, StopSignals
from .train import Trainer
from .weights import load_weights_into
from .weights_torchvision import is_published

MAX_FAILED_FRACTION = 0.1  # fraction of images that may fail to load before training stops


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
    class_map: ClassMap | None = None,
) -> None:
    """Trains, evaluates the result on DATASETS.TEST, and writes everything.

    Args:
        cfg: the config.
        output: folder for the results.
        console: for results.
        messages: for progress.
        images: folder of the images, if it is not that of the annotation files.
        skip_broken: skip broken annotations instead of raising.
        resume: continue from the newest intact checkpoint in the folder, if there is one.
        half: write the weights as float16.
        seed: seed of all random numbers.
        deterministic: give the same bits for the same seed.
        tensorboard: also write metrics for TensorBoard.
        device: device to train on; by default CUDA if available.
        class_map: new names for the dataset's categories, see `load_datasets`.

    Raises:
        CheckpointError: there is a checkpoint, but `resume` is not set or the checkpoint does not
            fit the run.
        ConfigError: the number of classes differs from the dataset's, the range of crop sizes is
            empty, or patience is set without evaluations.
        OutputError: the folder is not writable, another run is writing there, or the disk is full.
        Stopped: SIGINT or SIGTERM arrived. If training had begun, a checkpoint is written first.
        AnnotationError, TrainingError, ValueError: see `load_datasets` and `Trainer`.
    """
    # Imported here because torchvision takes 1.5 s to import and no other command needs it.
    from ..data.transforms import TrainTransform

    if deterministic:
        make_deterministic()
    folder = RunFolder(output)
    with StopSignals() as stop:
        with process_group(device, console, messages) as torch_device, locked(folder):
            check_patience(cfg)
            check_crops(cfg)
            existing = on_main(folder.checkpoints)
            if existing and not resume:
                raise CheckpointError(
                    f"{existing[0]} already exists: use --resume to continue from it, or another "
                    "--output"
                )
            options = {"masks": cfg.MODEL.MASK_ON, "keypoints": cfg.MODEL.KEYPOINT_ON}
            options["class_map"] = class_map
            train_sets = _load(cfg.DATASETS.TRAIN, images, skip_broken, messages, **options)
            test_paths = cfg.DATASETS.TEST
            test_sets = (
                _load(test_paths, images, skip_broken, messages, **options) if test_paths else []
            )
            names = train_sets[0].names
            check_classes(cfg, train_sets[0])
            for dataset in test_sets:
                matched_category_ids(names, dataset)
            for dataset in train_sets:
                dataset.transform = TrainTransform(cfg, dataset.keypoint_names)
                dataset.most_failing = MAX_FAILED_FRACTION
            seed_all(seed)
            model = build_detection_model(cfg)
            for line in doubtful_settings(cfg, model, train_sets, test_sets):
                messages.print(line)
            if cfg.MODEL.WEIGHT and not existing:
                epsilon = cfg.MODEL.WEIGHT_BN_EPSILON
                weights = cfg.MODEL.WEIGHT
                report = load_weights_into(
                    model, weights, other_classes=True, batch_norm_epsilon=epsilon
                )
                messages.print(str(report))
            data: ConcatDataset = ConcatDataset(train_sets)
            text = dump_config(cfg)
            trainer = Trainer(
                model, data, cfg, text, names, output, torch_device, seed, tensorboard
            )
            if existing:
                trainer.resume(tell=messages.print)
            elif resume:
                messages.print(f"{folder.newest}: does not exist, training starts from step 0")
            evaluate_tests = partial(_evaluate_all, datasets=test_sets)
            best = BestWeights(output, bool(existing), messages.print)
            results = _run(
                trainer, evaluate_tests if test_sets else None, messages, stop, best, half
            )
            if results is not None:
                _finish(trainer, results, test_sets, best, half, console, messages)
        if results is None:
            # Possibly only another process received the signal.
            signal_number = stop.received or signal.SIGTERM
            saved = folder.checkpoints()
            saved_note = f"; {saved[0]} is saved, --resume continues from it" if saved else ""
            name = signal.Signals(signal_number).name
            raise Stopped(signal_number, f"stopped by {name} after step {trainer.step}{saved_note}")


def _finish(
    trainer: Trainer,
    results: dict[str, Any],
    test_sets: list[DetectionDataset],
    best: BestWeights,
    half: bool,
    console: Console,
    messages: Console,
) -> None:
    """Writes the weights, evaluates them, then writes, plots and prints the results."""
    path = trainer.output / "weights.pt"
    if is_main():
        state = trainer.best_model.state_dict()
        save_weights(path, state, trainer.config_text, trainer.names, half)
    # Evaluate the file's weights, because users get those, including any loss of precision.
    checkpoint = on_main(lambda: load_checkpoint(path))
    detector = Detector.from_loaded(checkpoint, path, trainer.device)
    found: dict[str, Any] = {}
    results["evaluation"] = _evaluate_all(detector, test_sets, messages, found)
    if best.ap is not None:
        results["best"] = {"step": best.step, "AP": best.ap}
    for name, metrics in results["evaluation"].items():
        _print_metrics(metrics, name, console)
    if is_main():
        write_json(trainer.output / "results.json", results)
        plot_all(trainer.output / "plots", found, messages.print)
        if has_matplotlib():
            last = {"step": trainer.step, "evaluation": results["evaluation"]}
            plot_training(trainer.output / "metrics.jsonl", trainer.output / "results.png", last)
    skipped = results["skipped_steps"]
    skipped_note = f", {skipped} of them skipped (not finite)" if skipped else ""
    console.print(f"trained {results['steps']} steps in {results['seconds']:.0f} s{skipped_note}")
    console.print(str(path))
    if best.ap is not None:
        console.print(f"{best.path}: AP {best.ap:.3f}, after step {best.step}")


def evaluate_detector(
    weights: Path,
    data: Path,
    console: Console,
    messages: Console,
    images: Path | None = None,
    output: Path | None = None,
    max_detections: int | None = None,
    skip_broken: bool = False,
    device: str | None = None,
    cfg: Any = None,
    class_map: ClassMap | None = None,
    plots: Path | None = None,
) -> None:
    """Evaluates a detector on a dataset.

    Args:
        weights: checkpoint to detect with, or a file written by `detops export`, which runs on the
            CPU.
        data: annotation file.
        console: for the table.
        messages: for progress.
        images: folder of the images, if it is not that of the annotation file.
        output: JSON file for the results.
        max_detections: see `coco_metrics`.
        skip_broken: skip broken annotations instead of raising.
        device: device to run on; by default CUDA if available.
        cfg: config of the network, for weights of another library. Their categories are assumed to
            be COCO's or, if the number of classes differs, the dataset's.
        class_map: new names for the dataset's categories, see `load_datasets`.
        plots: folder for plots, see `plot_evaluation`.

    Raises:
        CheckpointError, AnnotationError: see `Detector` and `load_datasets`.
        OutputError: the results cannot be written; raised before the evaluation.
        ValueError: the detector lacks a category of the dataset, or is a torchvision detector.
        Stopped: SIGINT or SIGTERM arrived.
    """
    with StopSignals(), process_group(device, console, messages) as torch_device:
        if output is not None:
            on_main(lambda: check_writable(output))
        if cfg is None and is_published(weights):
            raise ValueError(TORCHVISION_UNSUPPORTED)
        exported = cfg is None and weights.suffix in SUFFIXES
        if exported:
            detector = Detector.from_exported(weights, device)
        elif cfg is None:
            checkpoint = on_main(lambda: load_checkpoint(weights))
            detector = Detector.from_loaded(checkpoint, weights, torch_device)
        else:
            detector = Detector.from_weights(weights, cfg, torch_device)
        # Masks and keypoints are evaluated if both the detector and the dataset have them. An
        # exported detector shows only when it runs whether it has them.
        masks = None if getattr(detector.model, "with_masks", exported) else False
        keypoints = None if getattr(detector.model, "num_keypoints", exported) else False
        options = {"masks": masks, "keypoints": keypoints, "class_map": class_map}
        (dataset,) = _load([str(data)], images, skip_broken, messages, **options)
        if all(name.isdecimal() for name in detector.names):
            if len(detector.names) == len(dataset.names):
                detector.names = dataset.names
        with counting_progress(messages, "evaluating") as report:
            found: list[Any] = []
            metrics = evaluate(detector, dataset, max_detections, report, found.extend)
        _print_metrics(metrics, dataset.path.name, console)
        if output is not None and is_main():
            write_json(output, metrics)
        if plots is not None and is_main():
            plot_all(plots, {"": (dataset, found)}, messages.print)


def check_writable(path: Path) -> None:
    """Raises OutputError before the work starts if the output file cannot be written."""
    if path.is_dir():
        raise OutputError(f"{path}: expected a file, got a folder")
    existed = path.exists()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        open(path, "ab").close()
    if not existed:
        path.unlink()


def write_json(path: Path, value: Any) -> None:
    """Writes a value as a JSON file and creates its folder; raises OutputError on failure."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextmanager
def process_group(device: str | None, *consoles: Console) -> Iterator[torch.device]:
    """Joins the distributed processes; only the main process prints to these consoles."""
    with processes(device) as torch_device:
        try:
            for console in consoles:
                console.quiet = not is_main()
            yield torch_device
        finally:
            for console in consoles:
                console.quiet = False


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Locks the folder in the main process on behalf of all processes."""
    with ExitStack() as stack:
        on_main(lambda: stack.enter_context(folder.locked()))
        yield


def _run(
    trainer: Trainer,
    evaluate_tests: Callable[..., dict[str, Any]] | None,
    messages: Console,
    stop: StopSignals,
    best: BestWeights,
    half: bool,
) -> dict[str, Any] | None:
    """Trains and returns step counts and timings, or None if training was stopped."""
    began, start_step = time.perf_counter(), trainer.step
    times = []
    solver = trainer.solver
    progress = (solver.MAX_ITER, trainer.step, solver.IMS_PER_BATCH, trainer.device)
    with training_progress(messages, *progress) as report:

        def record_step(record: dict[str, Any]) -> None:
            times.append(record["seconds"])
            report(record)

        def evaluate_now(model: nn.Module) -> dict[str, Any]:
            detector = Detector.from_config(model, trainer.names, trainer.cfg, trainer.device)
            found = evaluate_tests(detector) if evaluate_tests else {}
            best.update(trainer.step, found, model, trainer.config_text, trainer.names, half)
            return found

        def is_over() -> bool:
            return best.patience_exhausted(trainer.step, solver)

        with stop.deferred():
            # A run that ended by SOLVER.PATIENCE stays ended when it is resumed.
            finished = is_over() or trainer.run(
                record_step,
                evaluate_now if evaluate_tests else None,
                lambda: stop.received,
                is_over,
            )
    if not finished:
        return None
    if trainer.step < solver.MAX_ITER:
        messages.print(
            f"stopped after step {trainer.step}: no higher AP in {solver.PATIENCE} evaluations "
            "(SOLVER.PATIENCE)"
        )
    return {
        "steps": trainer.step - start_step,
        "skipped_steps": trainer.skipped,
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_per_step": round(statistics.median(times), 4) if times else None,
    }


def _evaluate_all(
    detector: Detector,
    datasets: list[DetectionDataset],
    messages: Console | None = None,
    collected: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns metrics by dataset name, see `distinct_names`.

    With `collected`, each dataset and its detections are also stored there under that name. Only
    the main process has the detections.
    """
    results = {}
    for name, dataset in zip(distinct_names(datasets), datasets, strict=True):
        # Silent during training, because the terminal shows the progress of training itself.
        console = messages or Console(quiet=True)
        with counting_progress(console, f"evaluating {name}") as report:
            found: list[Any] = []
            results[name] = evaluate(detector, dataset, report=report, keep=found.extend)
        if collected is not None:
            collected[name] = dataset, found
    return results


def _load(
    paths: Sequence[str],
    images: Path | None,
    skip_broken: bool,
    messages: Console,
    **options: Any,
) -> list[DetectionDataset]:
    on_error: Literal["raise", "skip"] = "skip" if skip_broken else "raise"
    datasets = load_datasets(list(paths), images, on_error, **options)
    for dataset in datasets:
        _print_problems(dataset, messages)
    return datasets


def _print_problems(dataset: DetectionDataset, messages: Console) -> None:
    text = dataset.describe_problems()
    if text:
        messages.print(f"{dataset.path}: {text}")


def _print_metrics(metrics: dict[str, Any], title: str, console: Console) -> None:
    keys = ("AP", "AP50", "AP75", "AR")
    table = Table("kind", "detections counted per image", *keys, title=title)
    by_kind = {
        "boxes": metrics,
        "masks": metrics.get("segm"),
        "keypoints": metrics.get("keypoints"),
    }
    for name, kind_metrics in by_kind.items():
        if kind_metrics is None:
            continue
        rows = {row["max_detections"]: row for row in (kind_metrics["standard"], kind_metrics)}
        for limit, row in rows.items():
            table.add_row(name, str(limit), *_shown(row, keys))
    console.print(table)
    classes = metrics["classes"]
    if len(classes) > 1:
        table = Table("class", *keys[:3])
        for name, row in classes.items():
            table.add_row(name, *_shown(row, keys[:3]))
        console.print(table)


def _shown(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    return ["-" if row[key] is None else f"{row[key]:.3f}" for key in keys]
