# SPDX-License-Identifier: MIT
"""Versions, devices and build settings of the installation."""

from __future__ import annotations

import platform
from importlib import metadata

import torch


def collect() -> dict[str, str]:
    """Returns versions, instruction set, threads and devices by title."""
    from . import _C, __version__

    facts = {
        "detops": __version__,
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "python": f"{platform.python_version()} ({platform.machine()}, {platform.system()})",
        "instruction set": str(_C.cpu_isa()),
        "threads": str(torch.get_num_threads()),
        "CUDA kernels": _cuda_text(_C.cuda_version),
    }
    facts["torch's CUDA"] = torch.version.cuda or "none"
    facts["device"] = (
        ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        if torch.cuda.is_available()
        else "CPU only"
    )
    return facts


def _cuda_text(version: int | None) -> str:
    return f"built with CUDA {version // 1000}.{version % 1000 // 10}" if version else "none"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
