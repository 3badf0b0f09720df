# SPDX-License-Identifier: MIT
"""Build backend of setuptools that reports a missing setuptools in one line, not a traceback."""

import sys

try:
    from setuptools.build_meta import *  # noqa: F403
except ImportError:
    sys.exit("detops requires setuptools 77 or newer to build: pip install -U setuptools")
