# SPDX-License-Identifier: MIT
"""The device to compute on."""

from __future__ import annotations

import torch


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Returns the requested device; by default CUDA if available, else the CPU.

    Args:
        device: cpu, cuda, or cuda:<number>.

    Raises:
        ValueError: the device is none of these, or does not exist.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return torch.device("cuda" if count else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu, cuda or cuda:<number>, got {str(device)!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        raise ValueError(f"device: expected one of {count} CUDA devices, got {chosen}")
    return chosen
