# SPDX-License-Identifier: MIT
"""A page on this machine: detectors on photographs that are dropped on it, and the ops in pictures.

Needs the extra `serve`.
"""

from .app import create_app
from .limits import Limits

__all__ = ["Limits", "create_app"]
