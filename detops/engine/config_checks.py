# SPDX-License-Identifier: MIT
"""Checks of a config and its data for training, in addition to those of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..config import ConfigError
from ..data import DetectionDataset
from ..data.shapes import Shapes
from ..modeling.build import num_classes
from .anchor_fit import fit_anchors


def check_crops(cfg: Any) -> None:
    """Rejects an empty range of crop sizes.

    Raises:
        ConfigError: crops are enabled, but INPUT.CROP_MIN is 0 or above INPUT.CROP_MAX.
    """
    low, high = cfg.INPUT.CROP_MIN, cfg.INPUT.CROP_MAX
    if high > 0 and not 1 <= low <= high:
        raise ConfigError(
            f"INPUT.CROP_MIN: expected 1 to INPUT.CROP_MAX, which is {high}, got {low}"
        )


def check_classes(cfg: Any, dataset: DetectionDataset) -> None:
    """Rejects a number of classes that differs from the dataset's.

    Raises:
        ConfigError: the message names the key and the expected number.
    """
    (key, classes), expected = num_classes(cfg), len(dataset.names) + 1
    if classes != expected:
        raise ConfigError(
            f"{key}: expected {expected} (background and "
            f"{expected - 1} categories of {dataset.path}), got {classes}"
        )


def doubtful_settings(
    cfg: Any,
    model: Any,
    train_sets: Sequence[DetectionDataset],
    test_sets: Sequence[DetectionDataset],
) -> Iterator[str]:
    """Yields one line for each setting that is valid, but is likely a mistake."""
    yield from _few_proposals(cfg)
    trained = _image_files(train_sets)
    for dataset in test_sets:
        shared = len(trained & _image_files([dataset]))
        if shared:
            yield (
                f"DATASETS.TEST: {shared} of the {len(dataset)} images of {dataset.path} are also "
                "in DATASETS.TRAIN: the AP does not show how well new images are detected"
            )
    for dataset in train_sets:
        # Generated datasets would draw every image.
        if isinstance(dataset, Shapes):
            continue
        fit = fit_anchors(cfg, model.rpn.anchor_generator, dataset.ground_truth())
        if 2 * fit.unmatched > len(fit.iou):
            yield (
                f"DATASETS.TRAIN: {fit.unmatched} of {len(fit.iou)} boxes of {dataset.path} match "
                f"no anchor (IoU below {fit.low:g}) and are hardly learned: change the anchor "
                "sizes or the size of the images; `detops data check --config` shows both"
            )


def _few_proposals(cfg: Any) -> Iterator[str]:
    """Yields a line if a proposal limit for the whole batch leaves too few for each image.

    The limit is meant for two images per process.
    """
    rpn, images = cfg.MODEL.RPN, cfg.SOLVER.IMS_PER_BATCH
    per_image = rpn.FPN_POST_NMS_TOP_N_TRAIN // images
    sampled = cfg.MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE
    if rpn.USE_FPN and rpn.FPN_POST_NMS_PER_BATCH and per_image < sampled:
        yield (
            f"MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN: {rpn.FPN_POST_NMS_TOP_N_TRAIN} proposals for the "
            f"whole batch are {per_image} for each of {images} images, fewer than the {sampled} "
            "that MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE samples; 1000 per image are usual"
        )


def _image_files(datasets: Sequence[DetectionDataset]) -> set[str]:
    return {str(each.image_path(i).absolute()) for each in datasets for i in range(len(each))}
