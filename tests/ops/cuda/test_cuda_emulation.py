"""The emulation of CUDA kernels reports behaviour that a GPU leaves undefined."""

import os
import platform
import subprocess

import pytest
from paths import ROOT

SOURCES = [ROOT / "tests/cuda/emulation.cpp", ROOT / "tests/emulation/emulation.cpp"]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation requires x86-64")
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_emulation_reports_undefined_behaviour_of_kernels(tmp_path, order):
    program = tmp_path / "emulation"
    compiler = os.environ.get("CXX", "c++").split()[0]
    subprocess.run([compiler, "-std=c++17", "-O1", *SOURCES, "-o", program], check=True)
    environment = os.environ | {"DETOPS_EMULATION": order}
    run = subprocess.run([program], capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0 and not run.stderr, run.stderr
