# SPDX-License-Identifier: MIT
"""Training, evaluation, detection, checkpoints."""

from .checkpoint import (
    CheckpointError,
    DamagedCheckpointError,
    OutputError,
    load_checkpoint,
    save_weights,
)
from .detect import Detector
from .evaluate import coco_metrics, evaluate
from .run_folder import RunFolder
from .train import Trainer, TrainingError
from .weights import WeightsReport, load_weights_into

__all__ = [
    "CheckpointError",
    "DamagedCheckpointError",
    "Detector",
    "OutputError",
    "RunFolder",
    "Trainer",
    "TrainingError",
    "WeightsReport",
    "coco_metrics",
    "evaluate",
    "load_checkpoint",
    "load_weights_into",
    "save_weights",
]
