# SPDX-License-Identifier: MIT
"""Every primitive of csrc/cpu/simd, on each type and instruction set, NEON in an emulator."""

import os
import re
import shutil
import subprocess

import pytest
from paths import ROOT

FOLDER = ROOT / "tests" / "simd"
NATIVE = os.environ.get("CXX", "c++").split()[0]
FLAGS = ["-std=c++17", "-ffp-contract=off", "-O1", "-w"]


@pytest.mark.parametrize(
    ("compiler", "emulator"),
    [(NATIVE, []), ("aarch64-linux-gnu-g++", ["qemu-aarch64-static"])],
    ids=["native", "aarch64"],
)
def test_primitives_equal_plain_loops(tmp_path, compiler, emulator):
    missing = [name for name in (compiler, *emulator) if shutil.which(name) is None]
    if missing or not FOLDER.is_dir():
        pytest.skip(f"needs {', '.join(missing) or 'the source tree'}")
    program = tmp_path / "primitives"
    sources = [FOLDER / "simd.cpp", ROOT / "csrc" / "cpu" / "simd" / "isa.cpp"]
    static = ["-static"] if emulator else []
    subprocess.run([compiler, *FLAGS, *static, *sources, "-o", program], check=True)
    result = subprocess.run([*emulator, program], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert re.search(r"baseline: [1-9]\d+ rows", result.stdout)
