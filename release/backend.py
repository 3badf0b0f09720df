# SPDX-License-Identifier: MIT
"""setuptools' build backend, with one line instead of a traceback where there is no setuptools."""

import sys

try:
    from setuptools.build_meta import *  # noqa: F403
except ImportError:
    sys.exit("detops builds with setuptools 77 or newer: pip install -U setuptools")
