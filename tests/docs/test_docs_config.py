# SPDX-License-Identifier: MIT
"""docs/config.md: the lines that its example changes."""

import re

import pytest
import yaml
from omegaconf import OmegaConf
from paths import ROOT

from detops.config import load_config

PAGE = ROOT / "docs" / "config.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")


def keys_and_values(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict):
            yield from keys_and_values(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_example_changes_keys_of_the_shipped_config():
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    changes = dict(keys_and_values(yaml.safe_load(text)))
    shipped = load_config("configs/tree_crowns.yaml")
    overrides = [part for pair in changes.items() for part in pair]
    changed = load_config("configs/tree_crowns.yaml", overrides)
    for key, value in changes.items():
        assert OmegaConf.select(shipped, key) != value
    assert changed.DATASETS.TRAIN == ["my/train.json"] and changed.MODEL.RPN.ASPECT_RATIOS[0] == 0.2
