"""Marks of tests with requirements that some machines lack."""

import os

import pytest
import torch

import detops

HAS_GPU = bool(torch.cuda.is_available() and detops._C.cuda_version)
NEEDS_GPU = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
NEEDS_NO_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="not under sanitizers"
)
