"""Sphinx configuration: ``make docs``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import detops
from detops.cli.commands import app as command_line
from detops.config import DEFAULTS

sys.path.insert(0, str(Path(__file__).parent))  # mathml

project = "detops"
copyright = "the detops authors"
release = version = detops.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "mathml",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings are checked
html_theme = "furo"
html_math_renderer = "mathml"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "download_all_examples": False,
    "write_computation_times": False,
    "show_memory": False,
    "abort_on_example_error": True,
}


def help_texts(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """Yields each command's full name and help text."""
    subcommands = getattr(command, "commands", {})
    for each, subcommand in subcommands.items():
        yield from help_texts(f"{name} {each}", subcommand)
    if not subcommands:
        context = command.make_context(name, [], resilient_parsing=True, terminal_width=100)
        yield name, command.get_help(context)


def command_page() -> str:
    """Returns the page of the command line, from its help texts."""
    intro = "# Command line\n\nThe texts of `--help`. The status is 2 if you can fix the error.\n"
    texts = help_texts("detops", typer.main.get_command(command_line))
    return intro + "".join(f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in texts)


def config_page() -> str:
    """Returns the page of the config keys, from the file of their defaults."""
    return f"""# Config keys

[Write your own config](config.md) shows how to change them.

```yaml
{DEFAULTS.read_text()}```
"""


def setup(app: Any) -> None:
    """Writes the pages that are generated."""
    for name, text in (("commands", command_page()), ("config-keys", config_page())):
        path = Path(app.srcdir) / f"{name}.md"
        if not path.is_file() or path.read_text() != text:  # an unchanged page is not built again
            path.write_text(text)
