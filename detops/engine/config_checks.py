# SPDX-License-Identifier: MIT
"""What a config must say for a training, beside what the network asks of it."""

from __future__ import annotations

from typing import Any

from ..config import ConfigError
from ..data import DetectionDataset
from ..modeling.build import num_classes


def check_crops(cfg: Any) -> None:
    """Refuses a range of crops that has no size.

    Raises:
        ConfigError: INPUT.CROP_MIN is 0, or above INPUT.CROP_MAX, and there are to be crops.
    """
    least, most = cfg.INPUT.CROP_MIN, cfg.INPUT.CROP_MAX
    if most > 0 and not 1 <= least <= most:
        raise ConfigError(
            f"INPUT.CROP_MIN: expected 1 to INPUT.CROP_MAX, which is {most}, got {least}"
        )


def check_classes(cfg: Any, dataset: DetectionDataset) -> None:
    """Refuses another number of classes than the data's.

    Raises:
        ConfigError: names the key, and the number that is expected.
    """
    (key, classes), expected = num_classes(cfg), len(dataset.names) + 1
    if classes != expected:
        raise ConfigError(
            f"{key}: expected {expected} (background and "
            f"{expected - 1} categories of {dataset.path}), got {classes}"
        )
