"""Config keys: the code reads each key or rejects all values except its default."""

import re

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from paths import PACKAGE

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.build.check import UNUSED

pytestmark = pytest.mark.slow

# Ignored keys: every value gives the same results, and defaults.yaml explains why.
WITHOUT_EFFECT = {
    "MODEL.ROI_HEADS.USE_FPN",
    "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS",
    "TEST.IMS_PER_BATCH",
}
# Sections with keys that the tools read by name, not the network.
TOOL_KEYS = re.compile(
    r"INPUT|DATASETS|DATALOADER|SOLVER|TEST\.TILE_NMS|MODEL\.WEIGHT|OUTPUT|DTYPE"
)


def leaves(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


DEFAULTS = dict(leaves(OmegaConf.to_container(load_config())))


def is_unread(key):
    return any(key == unread or key.startswith(f"{unread}.") for unread in UNUSED)


def test_every_key_is_read_or_rejected(monkeypatch):
    read, get_node = set(), DictConfig._get_node

    def recording_get(self, key, *args, **kwargs):
        names, section = [str(key)], self
        while section is not None and section._key() is not None:
            names, section = [str(section._key()), *names], section._get_parent()
        read.add(".".join(names))
        return get_node(self, key, *args, **kwargs)

    # Comparing keys with their defaults must not count as reading them.
    monkeypatch.setattr("detops.modeling.build.check.UNUSED", {})
    monkeypatch.setattr("detops.modeling.build.check.load_config", lambda: None)
    for path in PACKAGE.glob("configs/*.yaml"):
        cfg = load_config(path)
        if not (cfg.MODEL.RPN_ONLY or cfg.MODEL.RETINANET_ON):
            views = ["TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.SCALES", (400,)]
            cfg = load_config(path, views)
        with monkeypatch.context() as patched, torch.device("meta"):
            patched.setattr(DictConfig, "_get_node", recording_get)
            build_detection_model(cfg)
    tools = [p for p in PACKAGE.rglob("*.py") if PACKAGE / "modeling" not in p.parents]
    text = "\n".join(p.read_text() for p in tools if p.name not in ("config.py", "ranges.py"))
    for key in DEFAULTS:
        name = key.split(".")[-1]
        read_by_tools = TOOL_KEYS.match(key) and re.search(rf"\.{name}\b", text)
        assert key in read or read_by_tools or is_unread(key) or key in WITHOUT_EFFECT, key
        assert not (key in read and is_unread(key)), key


@pytest.mark.parametrize("key", list(filter(is_unread, DEFAULTS)))
def test_unread_key_must_keep_its_default(key):
    default = DEFAULTS[key]
    other = {str: "x", bool: not default, int: 7, float: 0.5, list: [["a", 1]]}[type(default)]
    with pytest.raises(ConfigError, match=f"^{key}: not used, because .*, got "):
        build_detection_model(load_config(None, [key, other]))


@pytest.mark.parametrize("key", sorted(WITHOUT_EFFECT))
def test_key_without_effect_accepts_any_value(key):
    other = {bool: not DEFAULTS[key], int: 7}[type(DEFAULTS[key])]
    cfg = load_config(PACKAGE / "configs/mask_rcnn_R_50_FPN_1x.yaml", [key, other])
    with torch.device("meta"):
        build_detection_model(cfg)
