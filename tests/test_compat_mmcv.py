"""mmcv's ops, unchanged, on detops."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("mmcv"), reason="needs mmcv-lite")
def test_mmcvs_own_functions():
    """In a process of its own, since what mmcv has imported stays imported."""
    code = (
        "import detops.compat, pytest, sys\n"
        "detops.compat.provide('mmcv')\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(TESTS / 'mmcv_ops.py')!r}]))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
