"""Builds the libraries of the ops, libdetops and libdetops_cuda, and detops._C.

The libraries use PyTorch's stable ABI: they work with every version from 2.10 on, whichever version
compiled them. _C does not depend on PyTorch at all. FORCE_CUDA=1 builds the CUDA library without a
GPU; FORCE_CUDA=0 skips it on a machine with one. DEBUG=1 builds for a debugger, SANITIZE=1 checks
memory accesses and undefined behaviour, COVERAGE=1 counts the executions of each line.
EMULATE_CUDA=1 is for tests: the CUDA kernels run on the CPU, in place of the CPU kernels.

DETOPS_PYTHONS="python3.10 python3.13" is for `make wheel`: it builds one wheel for all of these
Python versions, and for systems from glibc 2.28 on. DETOPS_CUDA_LIBRARY names a prebuilt
libdetops_cuda.so to include unchanged.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

LIBC, LIBC_VERSION = platform.libc_ver()
if LIBC != "glibc":
    sys.exit("detops builds only on Linux with glibc, but found no glibc")
try:
    import setuptools
    from setuptools import Extension, setup
    from setuptools.command.bdist_wheel import bdist_wheel

    if int(setuptools.__version__.split(".")[0]) < 77:
        raise ImportError(f"found {setuptools.__version__}")
except ImportError as error:
    sys.exit(
        f"detops requires setuptools 77 or newer to build: pip install -U setuptools ({error})"
    )
try:
    import pybind11
except ImportError:
    sys.exit("detops requires pybind11 to build, but found none: pip install pybind11")
try:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, include_paths, library_paths
except ImportError as error:
    sys.exit(
        "detops requires the headers of an installed PyTorch to build, but found none: install "
        f"torch 2.10 or newer, or build without --no-build-isolation ({error})"
    )

ROOT = Path(__file__).parent
DEBUG = os.environ.get("DEBUG", "0") == "1"
WERROR = os.environ.get("DETOPS_WERROR", "0") == "1"
SANITIZE = os.environ.get("SANITIZE", "0") == "1"
COVERAGE = os.environ.get("COVERAGE", "0") == "1"
FORCE_CUDA = os.environ.get("FORCE_CUDA") == "1"
EMULATE_CUDA = os.environ.get("EMULATE_CUDA", "0") == "1"
PYTHONS = os.environ.get("DETOPS_PYTHONS", "").split()
REPOSITORY = os.environ.get("DETOPS_REPOSITORY", "")  # its URL, for the page on a package index
CUDA_LIBRARY = os.environ.get("DETOPS_CUDA_LIBRARY", "")
NVCC = shutil.which("nvcc", path=Path(CUDA_HOME, "bin")) if CUDA_HOME else None
GPU = torch.cuda.is_available() and os.environ.get("FORCE_CUDA") != "0"
WITH_CUDA = NVCC is not None and (GPU or FORCE_CUDA) and not (EMULATE_CUDA or CUDA_LIBRARY)
if FORCE_CUDA and NVCC is None:
    sys.exit("FORCE_CUDA=1 needs a CUDA toolkit: none was found through CUDA_HOME or nvcc")
if CUDA_LIBRARY and not Path(CUDA_LIBRARY).is_file():
    sys.exit(f"DETOPS_CUDA_LIBRARY must be a prebuilt library: there is no {CUDA_LIBRARY!r}")
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    sys.exit(f"detops needs torch 2.10 or newer to build, found {torch.__version__}")
if WITH_CUDA and torch.version.cuda:
    output = subprocess.check_output([NVCC, "--version"], text=True)
    toolkit = re.search(r"release ([\d.]+)", output)
    if toolkit and toolkit[1].split(".")[0] != torch.version.cuda.split(".")[0]:
        sys.exit(
            f"detops needs a CUDA toolkit of PyTorch's major version ({torch.version.cuda}), found "
            f"{toolkit[1]}: set CUDA_HOME, or FORCE_CUDA=0 to build only the CPU ops"
        )
if GPU and NVCC is None:
    print("detops: no CUDA toolkit (CUDA_HOME or nvcc): building only the CPU ops", file=sys.stderr)
COMPILER = os.environ.get("CXX", "c++").split()[0]
if shutil.which(COMPILER) is None:
    sys.exit(
        f"detops is compiled on installation, but found no C++ compiler ({COMPILER!r}): "
        "install one, for example with apt install g++, or set CXX"
    )


def sources(*patterns: str) -> list[str]:
    """Returns paths relative to the root, as setuptools requires."""
    return sorted(
        str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)
    )


# Contraction into fused multiply-adds would make NMS decisions depend on the instruction set.
cxx_flags = ["-std=c++17", "-ffp-contract=off", "-fvisibility=hidden"]
# GCC warns about its own AVX-512 header, and about vector tails, whose length it overestimates.
# PyTorch's headers have unused parameters.
cxx_flags += ["-Wno-maybe-uninitialized", "-Wno-array-bounds", "-Wno-stringop-overread"]
cxx_flags += ["-Wno-unused-parameter"]
# Under emulation another file includes each .cu, so its file-local entities seem to be shared.
cxx_flags += ["-Wno-subobject-linkage"] if EMULATE_CUDA else []
# Emulated kernels spend their time switching threads: -O1 compiles them in two thirds of the time.
OPTIMISATION = "-O1" if EMULATE_CUDA else "-O3"
cxx_flags += ["-O0", "-g", "-UNDEBUG"] if DEBUG else [OPTIMISATION, "-g0"]
cxx_flags += ["-Wall", "-Wextra", "-Werror"] if WERROR else []
# Division by zero is not checked: the ops define it as infinity.
instrumentation = (
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"] if SANITIZE else []
)
# These checks of pointers double the time to compile. The address sanitizer reports the accesses.
instrumentation += ["-fno-sanitize=null,object-size,pointer-overflow"] if SANITIZE else []
instrumentation += ["-fno-omit-frame-pointer", "-g1", "-Og"] if SANITIZE else []
instrumentation += ["--coverage", "-fprofile-update=atomic", "-O1"] if COVERAGE else []
cxx_flags += instrumentation
nvcc_flags = ["-std=c++17", "--fmad=false", "--expt-relaxed-constexpr", "--extended-lambda"]
nvcc_flags += ["-O0", "-g", "-G"] if DEBUG else ["-O3"]
nvcc_flags += ["-Werror", "all-warnings"] if WERROR else []

LINK_FLAGS = [*instrumentation, "-Wl,--version-script=release/exports.map"]
NO_UNDEFINED = [] if SANITIZE else ["-Wl,--no-undefined"]
LINK_FLAGS += [] if DEBUG or SANITIZE else ["-s"]
# On a system newer than the wheel requires, older symbol versions must be requested explicitly.
GLIBC = tuple(map(int, LIBC_VERSION.split(".")))
OLD_SYMBOLS = sources("release/old_symbols.cpp") if PYTHONS and GLIBC > (2, 28) else []
OLD_SYMBOLS_CUDA = sources("release/old_symbols_cuda.cpp") if OLD_SYMBOLS else []


def old_symbols(paths: list[str]) -> list[str]:
    """Returns linker options for the symbols that these files list."""
    if not paths:
        return []
    text = "".join((ROOT / path).read_text() for path in paths)
    wrapped = [f"-Wl,--wrap={n}" for n in re.findall(r"^OLD_SYMBOL\((\w+)", text, re.MULTILINE)]
    # Newer glibc versions keep these libraries only for their names.
    return [*wrapped, "-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0", "-l:librt.so.1"]


HEADERS = sources("csrc/**/*.h", "csrc/**/*.inl", "csrc/**/*.cuh", "csrc/**/*.contract")
HEADERS += sources("detops/include/detops/*.h", "tests/emulation/*.h")
OLDEST_TORCH = "0x020a000000000000"  # 2.10; headers hide anything newer
SHARED_SOURCES = sources("csrc/*.cpp", "csrc/contract/*.cpp")
SHARED_SOURCES += ["csrc/cpu/masks/masks_to_rle.cpp", "csrc/cpu/simd/isa.cpp"]
SHARED_SOURCES = sorted({*SHARED_SOURCES} - {"csrc/python.cpp", "csrc/library.cpp"})


def library(name: str, paths: list[str], libraries: list[str], macros: list[str]) -> Extension:
    """Returns a library that PyTorch loads, without Python in it."""
    old = OLD_SYMBOLS + (OLD_SYMBOLS_CUDA if "USE_CUDA" in macros else [])
    macros = macros + ["DETOPS_DEBUG"] * DEBUG
    return Extension(
        f"detops.{name}",
        sources=paths + old,
        language="c++",
        depends=HEADERS,
        include_dirs=include_paths("cuda" if "USE_CUDA" in macros else "cpu")
        + [str(ROOT / "tests/emulation")] * EMULATE_CUDA,
        library_dirs=library_paths("cuda" if "USE_CUDA" in macros else "cpu"),
        libraries=libraries,
        define_macros=[("TORCH_TARGET_VERSION", OLDEST_TORCH), *((m, None) for m in macros)],
        extra_compile_args={"cxx": cxx_flags, "nvcc": nvcc_flags},
        extra_link_args=[
            "-Wl,--as-needed",
            f"-Wl,-soname,{name}.so",
            *NO_UNDEFINED,
            *LINK_FLAGS,
            *old_symbols(old),
        ],
    )


cpu_sources = sorted({*sources("csrc/cpu/*/*.cpp")} - {*SHARED_SOURCES})
if EMULATE_CUDA:
    # Wrappers with names that the C++ compiler accepts. Unchanged wrappers keep their object files.
    wrappers = ROOT / "build" / "emulation" / "sources"
    wrappers.mkdir(parents=True, exist_ok=True)
    cpu_sources = sources("tests/emulation/*.cpp")
    cpu_sources += sources("csrc/cpu/conv/*.cpp")  # DETOPS_CPU_OPS
    for path in map(Path, sources("csrc/cuda/**/*.cu")):
        if path.stem == "library":
            continue
        wrapper, text = wrappers / f"{path.stem}.cpp", f'#include "../../../{path}"\n'
        if not (wrapper.exists() and wrapper.read_text() == text):
            wrapper.write_text(text)
        cpu_sources.append(str(wrapper.relative_to(ROOT)))
extensions = [
    library(
        "libdetops",
        [*SHARED_SOURCES, "csrc/library.cpp", *cpu_sources],
        ["torch_cpu"],
        ["DETOPS_EMULATE_CUDA"] * EMULATE_CUDA,
    )
]
if WITH_CUDA:
    extensions.append(
        library(
            "libdetops_cuda",
            [*SHARED_SOURCES, *sources("csrc/cuda/**/*.cu")],
            # The runtime is linked statically, because PyTorch may use another version.
            ["torch_cuda", "torch_cpu", "cudart_static", "rt", "pthread", "dl"],
            ["USE_CUDA"],
        )
    )
# Last, because it links against libdetops.
extensions.append(
    Extension(
        "detops._C",
        sources=["csrc/python.cpp", *OLD_SYMBOLS],
        language="c++",
        depends=HEADERS,
        include_dirs=[pybind11.get_include()],
        extra_compile_args={"cxx": cxx_flags},
        extra_link_args=["-Wl,-rpath,$ORIGIN", *LINK_FLAGS, *old_symbols(OLD_SYMBOLS)],
    )
)


class Build(BuildExtension):
    """Names libraries as plain libraries, and compiles each separately."""

    def finalize_options(self) -> None:
        """Keeps object files in one folder, so a wheel reuses what an install compiled."""
        super().finalize_options()
        if self.editable_mode or PYTHONS:
            self.build_temp = str(ROOT / "build" / "objects")

    def get_ext_filename(self, fullname: str) -> str:
        """Omits the Python version tag for libraries that do not contain Python."""
        name = fullname.split(".")[-1]
        if name.startswith("lib"):
            return str(Path(*fullname.split(".")[:-1], f"{name}.so"))
        return str(super().get_ext_filename(fullname))

    def build_extension(self, ext: Extension) -> None:
        """Builds in a separate folder: two libraries compile some files with different options."""
        parent, self.build_temp = self.build_temp, str(Path(self.build_temp) / ext.name)
        try:
            if ext.name == "detops._C":
                ext.extra_objects = [self.get_ext_fullpath("detops.libdetops")]
            super().build_extension(ext)
        finally:
            self.build_temp = parent

    def run(self) -> None:
        """Also builds detops._C for other Pythons, and copies a prebuilt CUDA library."""
        super().run()
        folder = Path(self.get_ext_fullpath("detops._C")).parent
        if CUDA_LIBRARY:
            shutil.copy(CUDA_LIBRARY, folder / "libdetops_cuda.so")
        elif not WITH_CUDA:
            # A leftover from an earlier build would end up in the wheel.
            (folder / "libdetops_cuda.so").unlink(missing_ok=True)
        for python in PYTHONS:
            compile_for(python, folder)


def compile_for(python: str, folder: Path) -> None:
    """Compiles detops._C for another Python, using only its headers and file suffix."""
    code = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))"
    result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    headers, suffix = result.stdout.split()
    extension = extensions[-1]
    if (folder / f"_C{suffix}").exists():
        return  # compiled for this Python already
    print(f"detops._C for {python}", flush=True)
    sources = [str(ROOT / source) for source in extension.sources]
    flags = ["-shared", "-fPIC", f"-I{headers}", f"-I{pybind11.get_include()}", *cxx_flags]
    libraries = [str(folder / "libdetops.so"), *extension.extra_link_args]
    output = ["-o", str(folder / f"_C{suffix}")]
    subprocess.run([COMPILER, *flags, *sources, *libraries, *output], check=True, cwd=ROOT)


class Wheel(bdist_wheel):
    """Tags the wheel for every Python 3 if it was built for a list of versions."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tag; auditwheel later adds the platforms that it infers from the files."""
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if PYTHONS else (python, abi, platform)


def index_page() -> str:
    """Returns README.md for a package index, with absolute links, or plain text without a URL."""

    def link(match: re.Match[str]) -> str:
        image_mark, text, path = match.groups()
        if not REPOSITORY:
            return "" if image_mark else text
        return f"{image_mark}[{text}]({REPOSITORY}/{'raw' if image_mark else 'blob'}/HEAD/{path})"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)", link, readme)


setup(
    long_description=index_page(),
    long_description_content_type="text/markdown",
    project_urls={
        title: REPOSITORY + path
        for title, path in {
            "Source": "",
            "Issues": "/issues",
            "Changelog": "/blob/HEAD/CHANGELOG.md",
        }.items()
        if REPOSITORY
    },
    ext_modules=extensions,
    cmdclass={"build_ext": Build.with_options(use_ninja=True), "bdist_wheel": Wheel},
)
