# SPDX-License-Identifier: MIT
"""`detops config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import existing_config_file


def config_command(
    config: Annotated[
        Path | None, typer.Argument(help="A config file; without it, the shipped ones are listed.")
    ] = None,
) -> None:
    r"""Print a shipped config, to write your own.

    defaults.yaml has every key, with its default.

    For example:

        detops config

        detops config configs/tree_crowns.yaml > mine.yaml
    """
    from ..config import DEFAULTS

    if config is None:
        for path in sorted(DEFAULTS.parent.glob("*.yaml")):
            print(f"configs/{path.name}")
        return
    print(existing_config_file(config).read_text(encoding="utf-8"), end="")
