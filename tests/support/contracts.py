"""Finds the descriptions of ops that share a contract."""

import importlib
import sys

from paths import TESTS


def load_cases(kind):
    """Returns all ``CASES`` of this class in files ``tests/ops/<family>/cases_<op>.py``."""
    found = []
    for path in sorted((TESTS / "ops").glob("*/cases_*.py")):
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        found += importlib.import_module(path.stem).CASES
    return [case for case in found if isinstance(case, kind)]
