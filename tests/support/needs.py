"""Marks of tests with requirements that some machines lack."""

import os

import pytest
import torch

import detops

NEEDS_GPU = pytest.mark.skipif(
    not (torch.cuda.is_available() and detops._C.cuda_version), reason="needs a GPU"
)
CUDA = pytest.param("cuda", marks=NEEDS_GPU)
NEEDS_NO_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="needs no sanitizer"
)
