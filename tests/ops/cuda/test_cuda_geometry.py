"""Ownership of work by blocks: csrc/cuda/common/indexing.h, compiled for the CPU."""

import os
import subprocess

from paths import TESTS

SOURCE = TESTS / "cuda" / "geometry.cpp"


def test_every_piece_of_work_belongs_to_one_block(tmp_path):
    program = tmp_path / "geometry"
    compiler = os.environ.get("CXX", "c++").split()[0]
    command = [compiler, "-std=c++17", "-O1", "-fsanitize=undefined", SOURCE, "-o", program]
    subprocess.run(command, check=True)
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
