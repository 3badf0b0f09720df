"""Loads ``detops._C``, or explains in one message why it cannot be loaded and what to do."""

import importlib
import sys
from types import ModuleType

REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."


def load_extension() -> ModuleType:
    """Returns the compiled module.

    Raises:
        ImportError: it is missing, or was built for another PyTorch or Python than is installed;
            the message says what was built, what is here, and the command that mends it.
    """
    # libtorch must be in the process before the extension is: hence torch first, always.
    import torch

    here = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
    try:
        from . import _build
    except ImportError:
        built = "nothing was built in this installation"
        same_torch = True
    else:
        built = f"it was built for torch {_build.TORCH}, Python {_build.PYTHON}"
        same_torch = _minor(_build.TORCH) == _minor(torch.__version__)
    problem = f"{built}; installed: {here}. From the source tree, run: {REBUILD}"
    if not same_torch:
        raise ImportError(f"detops._C does not fit this PyTorch: {problem}")
    try:
        return importlib.import_module("detops._C")
    except ImportError as error:
        raise ImportError(f"detops._C cannot be loaded: {problem} ({error})") from error


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]
