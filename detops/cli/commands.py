# SPDX-License-Identifier: MIT
"""The commands of `detops`, one file each. They import what they need when they are called."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Annotated

import typer

from .bench import bench
from .compat import app as compat_app
from .config import config_command
from .data import app as data_app
from .demo import demo_command
from .detect import detect
from .evaluate import evaluate_command
from .export import export_command
from .info import info
from .serve import serve
from .train import train
from .weights import weights

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    # Plain text, so that help does not import a Markdown renderer.
    rich_markup_mode=None,
)
app.command()(train)
app.command("eval")(evaluate_command)
app.command()(detect)
app.command("export")(export_command)
app.command("demo")(demo_command)
app.command()(serve)
app.command()(bench)
app.command()(weights)
app.command("config")(config_command)
app.command()(info)
app.add_typer(compat_app, name="compat")
app.add_typer(data_app, name="data")

for each in (app, compat_app, data_app):
    for command in each.registered_commands:
        # \b keeps click from wrapping the examples, so that they can be pasted.
        document = getattr(command.callback, "__doc__", None) or ""
        command.help = re.sub(r"\n\n {8}(?=\S)", "\n\n    \b\n        ", document)


def _show_version(requested: bool) -> None:
    if requested:
        try:
            version = metadata.version("detops")
        except metadata.PackageNotFoundError:  # run from the source tree
            from .. import __version__ as version
        print(f"detops {version}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train, evaluate and run detectors on the detops operators."""
