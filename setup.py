"""Builds detops._C.

FORCE_CUDA=1 builds the CUDA half without a GPU, DEBUG=1 for a debugger, SANITIZE=1 with checks of
every memory access and of undefined behaviour. EMULATE_CUDA=1 is for tests: the CUDA kernels run on
the CPU, in place of the CPU's own.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup

try:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
except ImportError as error:
    sys.exit(
        "detops builds against the PyTorch that is installed, and found none.\n"
        "Install it first, then build without isolation:\n"
        "    pip install torch ninja setuptools wheel\n"
        f"    pip install --no-build-isolation .\n({error})"
    )

ROOT = Path(__file__).parent
DEBUG = os.environ.get("DEBUG", "0") == "1"
WERROR = os.environ.get("DETOPS_WERROR", "0") == "1"
SANITIZE = os.environ.get("SANITIZE", "0") == "1"
FORCE_CUDA = os.environ.get("FORCE_CUDA", "0") == "1"
EMULATE_CUDA = os.environ.get("EMULATE_CUDA", "0") == "1"
WITH_CUDA = CUDA_HOME is not None and (torch.cuda.is_available() or FORCE_CUDA) and not EMULATE_CUDA
if FORCE_CUDA and CUDA_HOME is None:
    sys.exit("FORCE_CUDA=1 needs a CUDA toolkit: none was found through CUDA_HOME or nvcc.")
COMPILER = os.environ.get("CXX", "c++").split()[0]
if shutil.which(COMPILER) is None:
    sys.exit(
        f"detops is compiled when it is installed, and found no C++ compiler ({COMPILER!r}).\n"
        "Install one, for example with: apt install g++, or set CXX."
    )


def sources(*patterns: str) -> list[str]:
    """Paths relative to the root, as setuptools wants them."""
    return sorted(
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)
    )


# Contraction into fused multiply-adds would make NMS decisions depend on the instruction set.
# Without -fopenmp, at::parallel_for is silently serial.
cxx = ["-std=c++17", "-ffp-contract=off", "-fopenmp", "-fvisibility=hidden"]
# GCC warns about its own AVX-512 header, and PyTorch's headers leave parameters unused.
cxx += ["-Wno-maybe-uninitialized", "-Wno-unused-parameter"]
cxx += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
cxx += ["-Wall", "-Wextra", "-Werror"] if WERROR else []
# A division by zero is an infinity that the ops define.
checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if SANITIZE else []
checks += ["-fno-omit-frame-pointer", "-g", "-O1"] if SANITIZE else []
cxx += checks
nvcc = ["-std=c++17", "--fmad=false", "--expt-relaxed-constexpr", "--extended-lambda"]
nvcc += ["-O0", "-g", "-G"] if DEBUG else ["-O3"]
nvcc += ["-Werror", "all-warnings"] if WERROR else []

options = {
    "sources": sources("csrc/*.cpp", "csrc/*/*.cpp", "csrc/cpu/kernels/*.cpp"),
    "extra_compile_args": {"cxx": cxx, "nvcc": nvcc},
    "extra_link_args": ["-fopenmp", *checks] + ([] if DEBUG or SANITIZE else ["-s"]),
    "depends": sources("csrc/**/*.h", "csrc/**/*.inl", "csrc/**/*.cuh"),
    "define_macros": [],
}
if WITH_CUDA:
    options["sources"] += sources("csrc/cuda/*.cu")
    options["define_macros"] += [("WITH_CUDA", None)]
if EMULATE_CUDA:
    # Under names that the C++ compiler gets; unchanged ones stay, and so do their object files.
    wrappers = ROOT / "build" / "emulation" / "sources"
    wrappers.mkdir(parents=True, exist_ok=True)
    for path in map(Path, sources("csrc/cuda/*.cu")):
        wrapper, text = wrappers / f"{path.stem}.cpp", f'#include "../{path.name}"\n'
        if not wrapper.exists() or wrapper.read_text() != text:
            wrapper.write_text(text)
    not_needed = {*sources("csrc/cpu/**/*.cpp")} - {*sources("csrc/cpu/**/isa.cpp")}
    options["sources"] = [path for path in options["sources"] if path not in not_needed]
    options["sources"] += sources("build/emulation/sources/*.cpp", "csrc/cuda/emulation/*.cpp")
    options["define_macros"] += [("DETOPS_EMULATE_CUDA", None)]
    options["include_dirs"] = [str(ROOT / "csrc/cuda/emulation")]
if DEBUG:
    options["define_macros"] += [("DETOPS_DEBUG", None)]


class Build(BuildExtension):
    """Records what the module was built for, so that a mismatch at import can be explained."""

    def finalize_options(self) -> None:
        """Keeps the object files of an editable install, which would go to a temporary folder."""
        super().finalize_options()
        if self.editable_mode:
            self.build_temp = str(ROOT / "build" / "editable")

    def run(self) -> None:
        """Writes detops/_build.py, then compiles."""
        target = (ROOT if self.inplace else Path(self.build_lib)) / "detops" / "_build.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            '"""What detops._C was built for. Written by setup.py."""\n\n'
            f"TORCH = {torch.__version__!r}\n"
            f"PYTHON = {sys.version.split()[0]!r}\n"
            f"CUDA = {torch.version.cuda if WITH_CUDA else None!r}\n"
        )
        super().run()


setup(
    ext_modules=[(CUDAExtension if WITH_CUDA else CppExtension)("detops._C", **options)],
    cmdclass={"build_ext": Build.with_options(use_ninja=True)},
)
