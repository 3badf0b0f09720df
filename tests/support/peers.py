"""Runs tests in separate processes, because the packages under test stay imported."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from paths import SUPPORT, TESTS, environment


def requires(*packages):
    """Returns marks that skip tests, visibly, if a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    reason = f"needs {', '.join(missing)}: see tests/peers.txt"
    return [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=reason)]


def python(*arguments, check=True):
    """Runs Python in a separate process and returns its output."""
    inherited = {k: v for k, v in environment().items() if not k.startswith("PYTEST_")}
    # These tests must not download weights.
    offline = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=inherited | offline,
        cwd=SUPPORT,
    )
    assert result.returncode == 0 or not check, result.stdout + result.stderr
    return result.stdout


def run_tests(file, *packages_to_provide):
    """Runs the tests of a file that pytest does not collect by itself."""
    names = ", ".join(map(repr, packages_to_provide))
    path = str(TESTS / "compat" / file)
    python(
        "-c",
        "import detops.compat, pytest, sys\n"
        f"for name in [{names}]: detops.compat.provide(name)\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {path!r}]))",
    )
