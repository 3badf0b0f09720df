# SPDX-License-Identifier: MIT
"""Checks of a config for training, in addition to those of the network."""

from __future__ import annotations

from typing import Any

from ..config import ConfigError
from ..data import DetectionDataset
from ..modeling.build import num_classes


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
