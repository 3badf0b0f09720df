# SPDX-License-Identifier: MIT
"""Runs other packages on detops, under their own names and conventions: :func:`provide`."""

from .provided import Provided, provide

__all__ = ["Provided", "provide"]
