# SPDX-License-Identifier: MIT
"""Where commands print: results to stdout, all else to stderr."""

from rich.console import Console

out = Console(soft_wrap=True, highlight=False, markup=False)
err = Console(soft_wrap=True, highlight=False, markup=False, stderr=True)
