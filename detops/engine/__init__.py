# SPDX-License-Identifier: MIT
"""Training, evaluation, detection, checkpoints."""

from .checkpoint import CheckpointError, load_checkpoint, save_weights
from .detect import Detector
from .evaluate import coco_metrics, evaluate
from .train import Trainer, TrainingError

__all__ = [
    "CheckpointError",
    "Detector",
    "Trainer",
    "TrainingError",
    "coco_metrics",
    "evaluate",
    "load_checkpoint",
    "save_weights",
]
