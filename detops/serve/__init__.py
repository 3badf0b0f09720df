# SPDX-License-Identifier: MIT
"""A local web page that runs detectors on dropped photographs, and illustrates the ops.

It requires the extra `serve`.
"""

from .app import create_app
from .limits import Limits

__all__ = ["Limits", "create_app"]
