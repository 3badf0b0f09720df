"""Configuration with the keys and defaults of maskrcnn-benchmark, and a few more.

``configs/defaults.yaml`` next to this file lists every key.
"""

import ast
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from .messages import shown
from .ranges import violated_range
from .safe_yaml import Loader, parse_yaml

DEFAULTS = Path(__file__).parent / "configs" / "defaults.yaml"

# A sample item of each tuple that is empty by default. It determines the type of the items.
SAMPLE_ITEMS = {"DATASETS.TRAIN": "name", "DATASETS.TEST": "name", "TEST.BBOX_AUG.SCALES": 800}
# Tuples that may be empty.
MAY_BE_EMPTY = {
    *SAMPLE_ITEMS,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS",
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS",
    "MODEL.FBNET.DET_HEAD_BLOCKS",
    "MODEL.FBNET.KPTS_HEAD_BLOCKS",
    "MODEL.FBNET.MASK_HEAD_BLOCKS",
    "SOLVER.STEPS",
    "TEST.EXPECTED_RESULTS",
}
# Tuples whose items may be tuples.
NESTED = {"MODEL.RPN.ANCHOR_SIZES", "MODEL.RETINANET.ANCHOR_SIZES"}


class ConfigError(ValueError):
    """An unknown or duplicate key, a wrong value, or a file that cannot be read."""


def load_config(path: str | Path | None = None, overrides: Sequence[Any] = ()) -> DictConfig:
    """Returns the defaults, updated by a YAML file and then by overrides.

    Args:
        path: YAML file, or None for the defaults alone. If the file ``configs/NAME.yaml`` does not
            exist, the config of that name in this package is used.
        overrides: key, value, key, value...: ``["MODEL.MASK_ON", True]``. A value may be text from
            a command line, where a tuple of names is ``[a.json, b.json]`` or a single name.

    Returns:
        A read-only config with attribute access: ``cfg.MODEL.MASK_ON``.

    Raises:
        ConfigError: the config is invalid. The message names the key, the file (or "overrides"),
            the expected value and the actual one.

    Example:
        >>> cfg = load_config(None, ["MODEL.MASK_ON", True, "DATASETS.TRAIN", "train.json"])
        >>> cfg.MODEL.MASK_ON, cfg.DATASETS.TRAIN
        (True, ['train.json'])
        >>> load_config(None, ["MODEL.MASK_ON", 3])
        Traceback (most recent call last):
            ...
        detops.config.ConfigError: overrides: MODEL.MASK_ON: expected bool, got int 3
    """
    defaults = _read(DEFAULTS)
    values = deepcopy(defaults)
    if path is not None:
        _merge(values, _read(config_file(path)), defaults, source=str(path))
    if len(overrides) % 2:
        raise ConfigError(f"overrides: expected pairs of key and value, got {list(overrides)}")
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        _merge(values, _nest(str(key), value), defaults, source="overrides")
    cfg = OmegaConf.create(values)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def config_file(path: str | Path) -> Path:
    """Returns the path, or the config of this package that it names if the file does not exist.

    Example:
        >>> config_file("configs/shapes.yaml").is_file(), config_file("mine.yaml").name
        (True, 'mine.yaml')
    """
    path = Path(path)
    if path.parent != Path("configs") or path.exists():
        return path
    shipped = DEFAULTS.with_name(path.name)
    return shipped if shipped.is_file() else path


def dump_config(cfg: DictConfig) -> str:
    """Returns the whole config as YAML; :func:`load_config` reads it back from a file.

    Example:
        >>> print(dump_config(load_config())[:5])
        MODEL
    """
    return OmegaConf.to_yaml(cfg)


@cache
def _cached_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = _cached_text(path) if path == DEFAULTS else path.read_text(encoding="utf-8")
        # YAML 1.1 reads 1e-3 as text; _coerce turns it into the number that was meant.
        values = parse_yaml(text, _Loader)
    except _DuplicateKeyError as error:
        raise ConfigError(f"{path}:{error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, got {type(values).__name__}")
    return values


class _DuplicateKeyError(yaml.YAMLError):
    """A duplicate key."""


class _Loader(Loader):
    """Rejects duplicate keys in a section. PyYAML would keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the section as a dict."""
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise _DuplicateKeyError(
                    f"{line}: duplicate key {key.value}, first set in line {lines[key.value]}"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(
    target: dict[str, Any], changes: Mapping, defaults: Mapping, source: str, prefix: str = ""
) -> None:
    """Writes the changes into `target`; `defaults` determines the types."""
    for key, value in changes.items():
        name = f"{prefix}{key}"
        if key not in defaults:
            raise ConfigError(
                f"{source}: unknown key {name}; known keys: {', '.join(map(str, defaults))}"
            )
        if isinstance(defaults[key], dict):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {name}: expected keys and values, got {shown(value)}")
            _merge(target[key], value, defaults[key], source, prefix=f"{name}.")
        else:
            target[key] = value = _coerce(defaults[key], value, name, source)
            allowed = violated_range(name, value)
            if allowed is not None:
                raise ConfigError(f"{source}: {name}: expected {allowed}, got {shown(value)}")
            if not value and isinstance(value, list) and name not in MAY_BE_EMPTY:
                raise ConfigError(f"{source}: {name}: expected at least one value, got []")


def _coerce(default: Any, value: Any, key: str, source: str) -> Any:
    """Converts `value` to the type of `default`, or raises ConfigError."""
    expected_type = type(default)
    if isinstance(value, str) and expected_type is not str:
        # From a command line, or a Python tuple in the YAML file of a yacs config.
        text = {"true": "True", "false": "False"}.get(value.lower(), value)
        try:
            value = ast.literal_eval(text)
        # The last three: endless brackets or signs, and `{[]: 1}`.
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            value = _typed_list(text, default, key) if expected_type is list else value
    if isinstance(value, str) and ("${" in value or value == "???"):
        raise ConfigError(f"{source}: {key}: placeholders are not supported, got {shown(value)}")
    if expected_type is list and isinstance(value, (list, tuple)):
        return _coerce_items(default, value, key, source)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ConfigError(f"{source}: {key}: expected a 64-bit number, got {shown(value)}")
    if expected_type is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # Python accepts a bool as an int; a config must not.
    if type(value) is expected_type:
        return value
    expected = {"list": "tuple"}.get(expected_type.__name__, expected_type.__name__)
    got = f"{type(value).__name__} {shown(value)}"
    raise ConfigError(f"{source}: {key}: expected {expected}, got {got}")


def _coerce_items(default: list, values: Sequence[Any], key: str, source: str) -> list:
    """Converts each item to the type of the default's items. A ConfigError names the item."""
    name, _, _ = key.partition("[")
    item = default[0] if default else SAMPLE_ITEMS.get(name)
    items = []
    for i, value in enumerate(values):
        item_key = f"{key}[{i}]"
        if item is None:
            items.append(_coerce_untyped(value, item_key, source))
        elif isinstance(value, (list, tuple)) and name in NESTED and name == key:
            items.append(_coerce_items(default, value, item_key, source))
        else:
            items.append(_coerce(item, value, item_key, source))
    return items


def _coerce_untyped(value: Any, key: str, source: str) -> Any:
    """Returns a string, a number or a list of these; rejects anything else."""
    is_list = isinstance(value, (list, tuple))
    parts = [
        _coerce(type(part)(), part, key, source)
        for part in (value if is_list else [value])
        if isinstance(part, (str, int, float))
    ]
    if len(parts) < (len(value) if is_list else 1):
        raise ConfigError(f"{source}: {key}: expected strings and numbers, got {shown(value)}")
    return parts if is_list else parts[0]


def _typed_list(text: str, default: list, key: str) -> Any:
    """Parses a list as typed, `[a.json, b.json]` or a single name; returns other text unchanged."""
    if isinstance(default[0] if default else SAMPLE_ITEMS.get(key), str) and text.strip():
        if text[0] not in "[(" and "," not in text:
            return [text]
        # Not parsed as YAML, where the colons and question marks of options in names are syntax.
        if text[0] == "[" and text[-1] == "]" and not set(text) & set("'\"{}"):
            return [item.strip() for item in text[1:-1].split(",") if item.strip()]
    try:
        value = parse_yaml(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, list) else text
