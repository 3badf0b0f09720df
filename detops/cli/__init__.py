# SPDX-License-Identifier: MIT
"""The `detops` command.

Torch and the rest are imported by the commands that need them, so that help and usage errors are
quick where `detops_command` has loaded this package without the one around it.
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
    SOME_FAILED,
    USER_ERROR,
    SomeFailed,
    cause_of,
    fail,
    rank,
    user_errors,
)
from .options import ASSETS, WITHOUT_ASSETS

# Of a command that has no memory left: bytes for the words that say so. Python asks the system for
# a MiB at a time.
_RESERVE = 4 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: those after the program's name; the process's own by default.

    Returns:
        The exit status: 0; 2 for what the user can mend, told in one line on stderr; 1 otherwise,
        and where a part of the work failed.
    """
    # A file's name that is no Unicode is printed as the bytes that it is.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    if debug:
        # Taken wherever it stands, since one adds it to a command that just failed.
        arguments = [argument for argument in arguments if argument != "--debug"]
    reserve = bytearray(_RESERVE)
    try:
        return int(app(arguments, prog_name="detops", standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        return fail("stopped", INTERRUPTED)
    except SystemExit as stop:
        # A signal, which several processes get together.
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
        if isinstance(error, SomeFailed):
            return fail(str(error), SOME_FAILED)
        if usage_message is not None:
            return fail(usage_message(), USER_ERROR)
        if cause := cause_of(error):
            return fail(cause, INTERNAL_ERROR)
        if isinstance(error, user_errors()):
            # A remedy in Python's terms is of no use here.
            advising = getattr(error, "advising", None)
            text = str(advising("--skip-broken") if advising else error)
            if not ASSETS.is_dir() and re.search(r"\b(tree_crowns|shapes)/", text):
                text += f"; {WITHOUT_ASSETS}"
            return fail(text, USER_ERROR)
        hint = "" if debug else " (--debug shows where)"
        return fail(f"{type(error).__name__}: {error}{hint}", INTERNAL_ERROR)
