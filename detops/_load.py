# SPDX-License-Identifier: MIT
"""Loads the compiled libraries, or reports in one message what is missing and how to fix it."""

import ctypes
import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType

OLDEST_TORCH = (2, 10)


def load_extension() -> ModuleType:
    """Returns ``detops._C`` after registering the ops for the devices that this PyTorch supports.

    Raises:
        ImportError: PyTorch is too old, or a library is missing or damaged. The message lists the
            installed versions and the fix.
    """
    # libtorch must be loaded before our libraries, so torch is always imported first.
    import torch

    installed = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(f"detops needs torch {oldest} or newer; installed: {installed}")
    try:
        module = importlib.import_module("detops._C")
    except ImportError as error:
        raise ImportError(
            f"detops._C cannot be loaded: {error}; installed: {installed}. "
            "Install detops again; from the source tree: pip install --no-build-isolation ."
        ) from error
    module.cuda_version = _load_cuda() if torch.version.cuda else None  # type: ignore[attr-defined]
    return module


def _load_cuda() -> int | None:
    """Loads the CUDA kernels and returns the CUDA version they were built with, or None."""
    path = Path(__file__).with_name("libdetops_cuda.so")
    if not path.exists():
        return None
    try:
        return int(ctypes.CDLL(str(path)).detops_cuda_version())
    except OSError as error:
        warnings.warn(f"detops runs on the CPU only: {path.name}: {error}", stacklevel=2)
        return None
