"""One-line errors of a build that lacks a requirement."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

RAISES_IMPORT_ERROR = "raise ImportError('not installed')\n"


def package(folder: Path, files: dict[str, str]) -> None:
    """Writes modules that shadow the installed ones."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def pytorch(version: str, gpu: bool = False, toolkit: str = "") -> dict[str, str]:
    """Returns the files of a stub PyTorch for CUDA 13.2, with or without a CUDA toolkit."""
    nvcc = f"#!/bin/sh\necho 'Cuda compilation tools, release {toolkit}, V{toolkit}.1'\n"
    return {
        **({"bin/nvcc": nvcc} if toolkit else {}),
        "torch/__init__.py": f"__version__ = {version!r}\nfrom torch import cuda, version\n",
        "torch/version.py": "cuda = '13.2'\n",
        "torch/cuda.py": f"def is_available(): return {gpu}\n",
        "torch/utils/__init__.py": "",
        "torch/utils/cpp_extension.py": "from pathlib import Path\n"
        "CUDA_HOME = str(Path(__file__).parents[2])\n"
        "class BuildExtension:\n    with_options = classmethod(lambda cls, **options: cls)\n"
        "def include_paths(*kind): return []\n"
        "def library_paths(*kind): return []\n",
    }


def build(folder: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a step of the build with the modules of a folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "CXX": "c++", **environment},
        capture_output=True,
        text=True,
    )


MISSING = {
    "glibc": (
        {"sitecustomize.py": "import platform\nplatform.libc_ver = lambda: ('', '')\n"},
        {},
        "detops builds only on Linux with glibc, but found no glibc",
    ),
    "setuptools": (
        {"setuptools.py": RAISES_IMPORT_ERROR},
        {},
        "detops requires setuptools 77 or newer to build: pip install -U setuptools "
        "(not installed)",
    ),
    "a recent setuptools": (
        {
            "setuptools/__init__.py": "__version__ = '76.1.0'\nExtension = setup = None\n",
            "setuptools/command/__init__.py": "",
            "setuptools/command/bdist_wheel.py": "bdist_wheel = None\n",
        },
        {},
        "detops requires setuptools 77 or newer to build: pip install -U setuptools (found 76.1.0)",
    ),
    "pybind11": (
        {"pybind11.py": RAISES_IMPORT_ERROR},
        {},
        "detops requires pybind11 to build, but found none: pip install pybind11",
    ),
    "torch": (
        {"torch.py": RAISES_IMPORT_ERROR},
        {},
        "detops requires the headers of an installed PyTorch to build, but found none: install "
        "torch 2.10 or newer, or build without --no-build-isolation (not installed)",
    ),
    "a recent torch": (
        pytorch("2.9.1+cpu"),
        {},
        "detops needs torch 2.10 or newer to build, found 2.9.1+cpu",
    ),
    "a CUDA toolkit": (
        pytorch("2.15.0"),
        {"FORCE_CUDA": "1"},
        "FORCE_CUDA=1 needs a CUDA toolkit: none was found through CUDA_HOME or nvcc",
    ),
    "a CUDA toolkit for this PyTorch": (
        pytorch("2.15.0", toolkit="12.8"),
        {"FORCE_CUDA": "1"},
        "detops needs a CUDA toolkit of PyTorch's major version (13.2), found 12.8: set CUDA_HOME, "
        "or FORCE_CUDA=0 to build only the CPU ops",
    ),
    "a CUDA library": (
        pytorch("2.15.0"),
        {"DETOPS_CUDA_LIBRARY": "no/such.so"},
        "DETOPS_CUDA_LIBRARY must be a prebuilt library: there is no 'no/such.so'",
    ),
    "a compiler": (
        pytorch("2.15.0"),
        {"CXX": "no-such-compiler -O2"},
        "detops is compiled on installation, but found no C++ compiler ('no-such-compiler'): "
        "install one, for example with apt install g++, or set CXX",
    ),
}


@pytest.mark.parametrize("missing", MISSING)
def test_missing_requirement_is_reported_in_one_line(tmp_path, missing):
    modules, environment, message = MISSING[missing]
    package(tmp_path, modules)
    result = build(tmp_path, ["setup.py", "--version"], **environment)
    assert (result.returncode, result.stderr) == (1, message + "\n")


def test_backend_reports_missing_setuptools(tmp_path):
    package(tmp_path, {"setuptools.py": RAISES_IMPORT_ERROR})
    result = build(tmp_path, ["-c", "import sys; sys.path.insert(1, 'release'); import backend"])
    message = "detops requires setuptools 77 or newer to build: pip install -U setuptools"
    assert (result.returncode, result.stderr) == (1, message + "\n")


def test_gpu_without_a_toolkit_builds_only_the_cpu_ops(tmp_path):
    package(tmp_path, pytorch("2.15.0", gpu=True))
    result = build(tmp_path, ["setup.py", "--version"])
    assert result.returncode == 0, result.stderr
    assert (
        result.stderr == "detops: no CUDA toolkit (CUDA_HOME or nvcc): building only the CPU ops\n"
    )
