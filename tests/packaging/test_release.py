import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import PACKAGE, ROOT, environment

import detops

sys.path.insert(0, str(ROOT / "release"))

import smoke  # noqa: E402
import symbols  # noqa: E402


def test_libraries_use_only_the_stable_abi():
    if shutil.which("readelf") is None or PACKAGE.parent != ROOT:
        pytest.skip("needs binutils, and the libraries of an ordinary build")
    for library in PACKAGE.glob("*.so"):
        assert symbols.abi_violations(library) == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")
def test_symbols_outside_the_stable_abi_are_reported(tmp_path):
    import torch

    library = tmp_path / "libdetops.so"
    library.symlink_to(Path(torch.__file__).parent / "lib" / "libshm.so")
    violations = "\n".join(symbols.abi_violations(library))
    assert "C++ symbol of PyTorch: " in violations and "links against libc10.so" in violations
    assert "exports an unexpected symbol: " in violations


@pytest.mark.slow
@pytest.mark.skipif(detops._C.emulated, reason="the results are the CPU's own")
def test_results_equal_the_stored_ones():
    result = subprocess.run(
        [sys.executable, smoke.__file__],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_differing_sizes_and_values_are_reported():
    import numpy as np
    import torch

    stored = smoke.sample(torch.arange(100.0).view(4, 25))
    assert smoke.difference(stored, stored, 0) == ""
    other = smoke.sample(torch.arange(100.0).view(5, 20))
    assert smoke.difference(other, stored, 0.5).startswith("different sizes: [ 5. 20.]")
    assert smoke.difference(stored + np.eye(1, len(stored), 9)[0], stored, 1e-6).startswith(
        "1 of 51"
    )


def test_version_is_defined_in_one_place():
    assert "dynamic = [" in (text := (ROOT / "pyproject.toml").read_text())
    assert not re.search(r"^version = \"", text, re.MULTILINE)
    notes = ROOT / "release" / "notes.sh"
    version = detops.__version__.partition(".dev")[0]
    assert subprocess.run([notes, version], capture_output=True, check=True).stdout
    assert subprocess.run([notes, "0.0.9"], capture_output=True).returncode != 0
