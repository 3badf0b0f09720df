# SPDX-License-Identifier: MIT
"""C++ programs that are built against the package under test and run without Python.

DETOPS_OTHER_TORCH is the lib folder of another PyTorch, under which the same programs also run.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from needs import NEEDS_NO_SANITIZER
from paths import ROOT

import detops

EXAMPLE = ROOT / "examples" / "cpp"
CMAKE = shutil.which("cmake") or shutil.which("cmake", path=Path(sys.executable).parent)
COMPILER = shutil.which(os.environ.get("CXX", "c++").split()[0])
OTHER_TORCH = os.environ.get("DETOPS_OTHER_TORCH")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLE.exists(), reason="needs the source tree"),
    pytest.mark.skipif(CMAKE is None, reason="needs cmake: pip install cmake"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
    NEEDS_NO_SANITIZER,
]


def run(*command, torch_lib=None):
    environment = dict(os.environ)
    environment.pop("LD_LIBRARY_PATH", None)
    if torch_lib:
        environment["LD_LIBRARY_PATH"] = str(torch_lib)
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(source, folder, *targets):
    prefixes = f"{detops.cmake_prefix_path};{torch.utils.cmake_prefix_path}"
    run(CMAKE, "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_PREFIX_PATH={prefixes}")  # fmt: skip
    run(CMAKE, "--build", folder, "--target", *targets)
    return folder


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Builds the example and writes its input."""
    pytest.importorskip("skimage", reason="the shapes' photographs are scikit-image's")
    folder = build(EXAMPLE, tmp_path_factory.mktemp("example"), "postprocess")
    run(sys.executable, EXAMPLE / "make_inputs.py", folder / "photograph.bin")
    return folder / "postprocess", folder / "photograph.bin"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return build(ROOT / "tests" / "cpp", tmp_path_factory.mktemp("programs"), "calls", "by_name")


def check_example(example, torch_lib=None):
    out = run(*example, torch_lib=torch_lib)
    results = re.findall(r"^  (\w+) +(\d+) elements, (.*)$", out, re.M)
    assert [name for name, _, _ in results] == [
        "nms", "boxes", "labels", "scores", "roi_align", "pyramid", "masks"
    ]  # fmt: skip
    assert all(int(size) > 0 and verdict == "matches Python" for _, size, verdict in results)
    assert "detops.nms: boxes must be [N, 4], got [27, 5]" in out
    return re.findall(r"running with (\S+)", out)[0]


@pytest.mark.exhaustive
def test_cpp_example_gives_the_results_of_python(example):
    version = ".".join(torch.__version__.split(".")[:2])
    assert check_example(example) == version
    needed = run("ldd", example[0])
    assert "libdetops.so" in needed and "libtorch_cpu.so" in needed and "libpython" not in needed


@pytest.mark.exhaustive
def test_cpp_example_reports_wrong_results(example, tmp_path):
    program, inputs = example
    damaged = tmp_path / "damaged.bin"
    data = inputs.read_bytes()
    name = b"expected_labels int64 27\n"
    at = data.index(name) + len(name)
    damaged.write_bytes(data[:at] + bytes([data[at] + 1]) + data[at + 1 :])
    result = subprocess.run([program, damaged], capture_output=True, text=True)
    assert result.returncode == 1
    assert re.findall(r"(\w+) .* DIFFERS from Python", result.stdout) == ["labels"]


@pytest.mark.parametrize("program", ["calls", "by_name"])
def test_cpp_programs_run(programs, program):
    run(programs / program)


@pytest.mark.skipif(not OTHER_TORCH, reason="needs DETOPS_OTHER_TORCH, another PyTorch's lib")
def test_cpp_programs_run_with_another_pytorch(example, programs):
    assert check_example(example, OTHER_TORCH) != check_example(example)
    for program in ("calls", "by_name"):
        run(programs / program, torch_lib=OTHER_TORCH)


def test_cmake_reports_a_missing_libtorch(tmp_path):
    prefix = tmp_path / "detops"
    shutil.copytree(detops.cmake_prefix_path, prefix / "share" / "cmake")
    result = subprocess.run(
        [CMAKE, "-S", EXAMPLE, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "no LibTorch of version 2.10 or newer was found" in " ".join(result.stderr.split())
