"""Runs tests of packages that stay imported, in processes of their own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import detops

TESTS = Path(__file__).parent
ROOT = Path(detops.__file__).parent.parent


def needs(*packages):
    """Skips tests, visibly, where a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    reason = f"needs {', '.join(missing)}: see tests/peers.txt"
    return [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=reason)]


def python(*arguments, check=True):
    """Runs Python beside the tests; gives what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT), str(TESTS), kept.get("PYTHONPATH", "")])
    # Nothing here may reach for weights.
    offline = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=kept | offline,
        cwd=TESTS,
    )
    assert result.returncode == 0 or not check, result.stdout + result.stderr
    return result.stdout


def run_tests(file, *provided):
    """The tests of a file that pytest does not collect by itself."""
    names = ", ".join(map(repr, provided))
    python(
        "-c",
        "import detops.compat, pytest, sys\n"
        f"for name in [{names}]: detops.compat.provide(name)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(TESTS / file)!r}]))",
    )
