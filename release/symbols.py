# SPDX-License-Identifier: MIT
"""Checks that the libraries in a wheel or folder keep to PyTorch's stable ABI: `make symbols`.

No library may have undefined C++ symbols of PyTorch, and the libraries of the ops may not use
symbols of Python. Each may link only against libraries that every system with PyTorch has.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SYSTEM_LIBRARIES = r"libc\.so\.6|libm\.so\.6|libdl\.so\.2|librt\.so\.1|libpthread\.so\.0|ld-linux.*"
SYSTEM_LIBRARIES += r"|libstdc\+\+\.so\.6|libgcc_s\.so\.1"
TORCH = re.compile(r"\b(at|c10|torch|caffe2)::")
PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# Libraries that each kind of file may link against. The CUDA runtime is static; cuBLAS comes from
# PyTorch.
ALLOWED_LIBRARIES = {
    "libdetops.so": r"libtorch_cpu\.so",
    "libdetops_cuda.so": r"libtorch_cpu\.so|libtorch_cuda\.so",
    "_C": r"libdetops\.so",
}


def output(*command: str) -> list[str]:
    """Returns the lines that a program prints."""
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def abi_violations(library: Path) -> list[str]:
    """Returns the faults of a library, one per line."""
    kind = library.name if library.name.startswith("lib") else "_C"
    undefined = [line.split(maxsplit=1)[1] for line in output("nm", "-DCu", str(library))]
    violations = [f"C++ symbol of PyTorch: {name}" for name in undefined if TORCH.search(name)]
    violations += [
        f"undefined symbol of detops: {name}" for name in undefined if "detops::" in name
    ]
    if kind != "_C":
        violations += [f"symbol of Python: {name}" for name in undefined if PYTHON.match(name)]
    for line in output("readelf", "-dW", str(library)):
        name = line.partition("[")[2].rstrip("]")
        if "(NEEDED)" in line and not re.fullmatch(
            f"{SYSTEM_LIBRARIES}|{ALLOWED_LIBRARIES[kind]}", name
        ):
            violations.append(f"links against {name}")
    for line in output("nm", "-DC", "--defined-only", str(library)):
        name = line.split(maxsplit=2)[2]
        if not re.match(r"detops_|PyInit__C\b", name):
            violations.append(f"exports an unexpected symbol: {name}")
    return violations


def main(paths: list[str]) -> int:
    """Returns the exit status; paths are wheels, folders or libraries."""
    status, checked = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for path in map(Path, paths):
            if not path.exists():
                continue
            if path.suffix == ".whl":
                unpacked = Path(scratch, path.name)
                zipfile.ZipFile(path).extractall(unpacked)
                path = unpacked
            for library in [path] if path.is_file() else sorted(path.rglob("*.so")):
                violations = abi_violations(library)
                print(f"{library.name}: {'; '.join(violations) or 'keeps to the stable ABI'}")
                status |= bool(violations)
                checked += 1
    if not checked:
        print("no library found in", *paths or ["nothing"])
    return status or not checked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
