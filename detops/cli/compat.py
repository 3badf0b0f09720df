# SPDX-License-Identifier: MIT
"""`detops compat`: makes other packages in an environment use these ops permanently."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from .errors import UsageError

app = typer.Typer(
    help="Let mmcv, detectron2, maskrcnn_benchmark, torchvision, transformers or ultralytics run "
    "on the ops of detops, for every program of this environment.",
    no_args_is_help=True,
)
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="See `detops compat list`.")]


def _change(action: Callable[[Sequence[str]], None], names: list[str], hook: Any) -> None:
    for name in names:
        if name not in hook.NAMES:
            raise UsageError(f"{name}: not one of {', '.join(hook.NAMES)}")
    try:
        action(names)
    except PermissionError as error:
        raise UsageError(
            f"{hook.pth_file().parent} cannot be written ({error.strerror}): use a virtual "
            "environment, or call detops.compat.provide in the program"
        ) from error


@app.command()
def enable(names: Names) -> None:
    """Enable packages, from the next start of Python on.

    Writes one file, detops_compat.pth, into the environment's site-packages. Other packages are not
    changed.

    For example:

        detops compat enable mmcv

        detops compat enable torchvision transformers
    """
    hook = import_module("detops_hook")
    _change(hook.enable, names, hook)
    print(f"enabled in {sys.prefix}: {', '.join(hook.enabled())}")


@app.command()
def disable(names: Names) -> None:
    """Undo `enable`.

    For example:

        detops compat disable mmcv
    """
    hook = import_module("detops_hook")
    _change(hook.disable, names, hook)
    print(f"still enabled in {sys.prefix}: {', '.join(hook.enabled()) or 'none'}")


@app.command("list")
def list_names() -> None:
    """Show which packages are enabled in this environment.

    For example:

        detops compat list
    """
    hook = import_module("detops_hook")
    enabled = hook.enabled()
    for name in hook.NAMES:
        print(f"{name:<20}{'on' if name in enabled else 'off'}")
