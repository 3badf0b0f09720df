# SPDX-License-Identifier: MIT
"""benchmarks/limits.py asks every op for its bounds."""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch

import detops
from detops.registration import CONTRACTS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)


def _cases():
    spec = importlib.util.spec_from_file_location("limits_cases", BENCHMARKS / "limits_cases.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES = _cases()
NOT_OPS = {"optimize", "patch_torchvision", "register_tensor_methods", "release_memory"}


def test_every_op_has_a_bound():
    functions = {name for name in detops.__all__ if inspect.isfunction(getattr(detops, name))}
    assert functions - NOT_OPS == {name.split(",")[0] for name in {*CASES.PAIRS, *CASES.LINEAR}}
    assert functions & NOT_OPS == NOT_OPS and not NOT_OPS & CONTRACTS.keys()


@pytest.mark.parametrize("op", [*CASES.PAIRS, *CASES.LINEAR])
@pytest.mark.parametrize("n", [1, 3])
def test_a_call_of_any_size_can_be_made(op, n):
    make = CASES.PAIRS[op] if op in CASES.PAIRS else CASES.LINEAR[op][1]
    result = make(n)()
    first = result if isinstance(result, torch.Tensor) else result[0]
    if isinstance(first, torch.Tensor) and first.requires_grad:
        first.sum().backward()
