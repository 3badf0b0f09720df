# SPDX-License-Identifier: MIT
"""Benchmarks of every op against torchvision and plain PyTorch, in one process."""
