# SPDX-License-Identifier: MIT
"""`detops info`."""

from __future__ import annotations


def info() -> None:
    """Show versions, instruction set, threads, CUDA build and device.

    For example:

        detops info
    """
    from ..info import collect
    from .consoles import out

    facts = collect()
    width = max(map(len, facts))
    for title, value in facts.items():
        out.print(f"{title:<{width}}  {value}")
