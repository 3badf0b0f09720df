"""The configuration: maskrcnn-benchmark's keys and defaults, and a few of our own.

``configs/defaults.yaml`` beside this file lists every key.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

DEFAULTS = Path(__file__).parent / "configs" / "defaults.yaml"


class ConfigError(ValueError):
    """A key that does not exist, a value of the wrong type, or a file that cannot be read."""


def load_config(path: str | Path | None = None, overrides: Sequence[Any] = ()) -> DictConfig:
    """The defaults, changed by a YAML file and then by overrides.

    Args:
        path: YAML file, or None for the defaults alone.
        overrides: key, value, key, value...: ``["MODEL.MASK_ON", True]``. A value may be text, as
            from a command line.

    Returns:
        A read-only config with attribute access: ``cfg.MODEL.MASK_ON``.

    Raises:
        ConfigError: names the key, the file (or "overrides"), what was expected and what came.
    """
    values = _read(DEFAULTS)
    if path is not None:
        _merge(values, _read(Path(path)), source=str(path))
    if len(overrides) % 2:
        raise ConfigError(f"overrides: expected pairs of key and value, got {list(overrides)}")
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        _merge(values, _nest(str(key), value), source="overrides")
    cfg = OmegaConf.create(values)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def dump_config(cfg: DictConfig) -> str:
    """YAML text of the whole config; :func:`load_config` reads it back from a file."""
    return OmegaConf.to_yaml(cfg)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = _text(path) if path == DEFAULTS else path.read_text(encoding="utf-8")
        # YAML 1.1 reads 1e-3 as text; _coerce turns it into the number that was meant.
        values = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, got {type(values).__name__}")
    return values


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(target: dict[str, Any], source_values: Mapping, source: str, prefix: str = "") -> None:
    for key, value in source_values.items():
        name = f"{prefix}{key}"
        if key not in target:
            raise ConfigError(
                f"{source}: unknown key {name}; known here: {', '.join(map(str, target))}"
            )
        if isinstance(target[key], dict):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {name}: expected keys and values, got {value!r}")
            _merge(target[key], value, source, prefix=f"{name}.")
        else:
            target[key] = _coerce(target[key], value, f"{source}: {name}")


def _coerce(default: Any, value: Any, where: str) -> Any:
    """`value` as the type of `default`, or a ConfigError."""
    wanted = type(default)
    if isinstance(value, str) and wanted is not str:
        # A command line, or a Python tuple in YAML, as yacs files have them.
        text = {"true": "True", "false": "False"}.get(value.lower(), value)
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = _yaml_list(text) if wanted is list else value
    if wanted is list and isinstance(value, (list, tuple)):
        return [list(v) if isinstance(v, tuple) else v for v in value]
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int to Python, not to whoever writes a config.
    if type(value) is wanted:
        return value
    expected = {"list": "tuple"}.get(wanted.__name__, wanted.__name__)
    raise ConfigError(f"{where}: expected {expected}, got {type(value).__name__} {value!r}")


def _yaml_list(text: str) -> Any:
    """A list of words as one types it, `[a.json, b.json]`; other text as it is."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, list) else text
