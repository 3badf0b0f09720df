# SPDX-License-Identifier: MIT
"""Build backend of setuptools that reports a missing setuptools in one line, not a traceback."""

import sys

try:
    from setuptools.build_meta import *  # noqa: F403
except ImportError:
    sys.exit("detops builds with setuptools 77 or newer: pip install -U setuptools")
