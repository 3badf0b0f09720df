# SPDX-License-Identifier: MIT
"""Other packages' own names and conventions for what the ops do: :func:`provide`."""

from .provided import Provided, provide

__all__ = ["Provided", "provide"]
