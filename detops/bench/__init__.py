# SPDX-License-Identifier: MIT
"""The benchmarks: every op against torchvision's and plain PyTorch, in one process."""
