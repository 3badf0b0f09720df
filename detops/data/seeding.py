# SPDX-License-Identifier: MIT
"""Seeding of the random number generators of torch, numpy and Python."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def mix(*numbers: int) -> int:
    """Derives a seed in 0..2^63 - 1 from several numbers; close numbers give unrelated seeds."""
    words = [number & (2**64 - 1) for number in numbers]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) >> 1


def seed_all(seed: int) -> None:
    """Seeds every default generator, including those of CUDA devices."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the CPU's default generators in the block, and restores them afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def make_deterministic() -> None:
    """Makes a seed give the same bits in every run on the same machine and number of threads.

    Must be called before CUDA is used: cuBLAS reads its workspace size only once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
