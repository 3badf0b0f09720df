# SPDX-License-Identifier: MIT
"""Options that several commands share, and their default files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]


def demo_files() -> Path:
    """Returns the folder of the demo's files: in the package in a checkout, else detops-demo's."""
    spec = None if (PACKAGE / "assets").is_dir() else find_spec("detops_demo")
    return Path(spec.origin).parent if spec and spec.origin else PACKAGE / "assets"


ASSETS = demo_files()
ASSETS_MISSING = "the demo files are not installed: pip install 'detops[demo]'"
TREE_CROWNS = ASSETS / "tree_crowns"
DEFAULT_WEIGHTS = TREE_CROWNS / "weights.pt"
SHAPES_WEIGHTS = ASSETS / "shapes" / "weights.pt"
# Next to the package in a checkout, inside it in an installation.
CONFIGS = PACKAGE.parent / "configs", PACKAGE / "configs"
DEFAULT_CONFIG = next(filter(Path.is_dir, CONFIGS), CONFIGS[0]) / "tree_crowns.yaml"

Weights = Annotated[
    Path, typer.Option(help="Checkpoint to detect with.", show_default="the tree-crown detector")
]
NetworkConfig = Annotated[
    Path | None, typer.Option(help="Config of the network, for weights of other packages.")
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 ...; by default CUDA if available.")
]
Images = Annotated[
    Path | None, typer.Option(help="Folder of the images, if not that of the JSON file.")
]
SkipBroken = Annotated[
    bool,
    typer.Option("--skip-broken", help="Skip broken data instead of stopping."),
]
ClassMap = Annotated[
    str | None,
    typer.Option(
        metavar="OLD=NEW,...",
        help="Other names for the classes of the data, or a YAML or JSON file of them.",
    ),
]


def existing_config_file(path: Path) -> Path:
    """Returns the file that a config option names, see `config_file`.

    Raises:
        UsageError: there is none; the message suggests a similar name.
    """
    from difflib import get_close_matches

    from ..config import DEFAULTS, config_file

    found = config_file(path)
    if not found.is_file():
        shipped = [f"configs/{each.name}" for each in DEFAULTS.parent.glob("*.yaml")]
        similar = get_close_matches(str(path), shipped, n=1)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        raise UsageError(f"{path}: no such config file{hint}")
    return found


def load_config_file(path: Path | None, overrides: Sequence[str] = ()) -> Any:
    """Loads the config of a file and of `KEY VALUE` pairs; returns None without a file."""
    from ..config import load_config

    if path is None:
        return None
    existing_config_file(path)
    return load_config(path, overrides)


def parse_class_map(text: str | None) -> dict[str, str] | None:
    """Reads the pairs of a `--class-map`; returns None without one."""
    from ..data import read_class_map

    return None if text is None else read_class_map(text)
