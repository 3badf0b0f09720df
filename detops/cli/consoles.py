# SPDX-License-Identifier: MIT
"""Consoles of the commands: results go to stdout, everything else to stderr."""

from rich.console import Console

out = Console(soft_wrap=True, highlight=False, markup=False)
err = Console(soft_wrap=True, highlight=False, markup=False, stderr=True)
