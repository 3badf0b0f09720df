# SPDX-License-Identifier: MIT
"""The `detops` command.

Commands import torch and other packages themselves. Help and usage errors are therefore fast if
`detops_command` has loaded this package without its parent package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import typer

from .commands import app
from .errors import (
    INTERNAL_ERROR,
    INTERRUPTED,
    PARTIAL_FAILURE,
    USER_ERROR,
    PartialFailure,
    error_cause,
    fail,
    rank,
    user_errors,
)
from .options import ASSETS, ASSETS_MISSING

# Bytes reserved for the message that memory has run out. Python requests memory from the system a
# MiB at a time.
_RESERVE = 4 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: arguments after the program's name; those of the process by default.

    Returns:
        The exit status: 0 for success; 2 for errors that the user can fix, with one line on stderr;
        1 for other errors, and if a part of the work failed.
    """
    # File names that are not valid Unicode are printed as their bytes.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        # Accepted anywhere, since users append it to a command that has failed.
        arguments = [argument for argument in arguments if argument != "--debug"]
    reserve = bytearray(_RESERVE)
    try:
        return int(app(arguments, prog_name="detops", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        return fail("stopped", INTERRUPTED)
    except SystemExit as stop:
        # A signal, which all processes receive. Only the main one prints it.
        if rank() == "0" and hasattr(stop, "message"):
            print(f"detops: {stop.message}", file=sys.stderr)
        return int(stop.code or 0)
    except Exception as error:
        del reserve
        usage_message = getattr(error, "format_message", None)
        if usage_message is not None and type(error).__name__ == "NoArgsIsHelpError":
            print(usage_message())
            return USER_ERROR
        if debug:
            from .consoles import err

            err.print_exception()
        if isinstance(error, PartialFailure):
            return fail(str(error), PARTIAL_FAILURE)
        if usage_message is not None:
            return fail(usage_message(), USER_ERROR)
        if cause := error_cause(error):
            return fail(cause, INTERNAL_ERROR)
        if isinstance(error, user_errors()):
            # Advice for the command line instead of for Python.
            with_remedy = getattr(error, "with_remedy", None)
            text = str(with_remedy("--skip-broken") if with_remedy else error)
            if not ASSETS.is_dir() and re.search(r"\b(tree_crowns|shapes)/", text):
                text += f"; {ASSETS_MISSING}"
            return fail(text, USER_ERROR)
        hint = "" if debug else " (--debug shows where)"
        return fail(f"{type(error).__name__}: {error}{hint}", INTERNAL_ERROR)
