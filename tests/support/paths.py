"""Folders of the project, and the environment of programs that tests start."""

import os
from pathlib import Path

import detops

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
PACKAGE = Path(detops.__file__).parent  # outside of ROOT under sanitizers and emulation


def environment(*folders, **variables):
    """Returns an environment in which programs import the tested detops and this folder's modules.

    Args:
        folders: further folders to import from, before the others.
        variables: further environment variables.
    """
    path = [*folders, PACKAGE.parent, SUPPORT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, filter(None, path)))} | variables
