# SPDX-License-Identifier: MIT
"""benchmarks/limits.py covers every op, and ops bound their scratch memory."""

import importlib.util
import inspect
import sys
import time

import pytest
import torch
from needs import NEEDS_NO_SANITIZER
from paths import ROOT
from raw_calls import schema_ops

import detops
from detops.registration import CONTRACTS

BENCHMARKS = ROOT / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("needs the benchmarks folder", allow_module_level=True)


def _module(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES = _module("limits_cases")
LIMITS = _module("limits")  # imports the cases
NOT_OPS = {"optimize", "patch_torchvision", "register_tensor_methods", "release_memory"}

# Ops that do the work of another op, by the prefix of their names.
EQUIVALENT_OPS = {
    "deform_conv_": "deform_conv2d",
    "modulated_deform_conv_": "deform_conv2d",
    "deform_psroi_pool": "deform_psroi_pooling",
    "sigmoid_focalloss_": "sigmoid_focal_loss",
    "sigmoid_focal_loss_sum": "sigmoid_focal_loss",
    "winograd_conv2d_backward_weight": "winograd_conv2d",
    "box_iou_aligned": "generalized_box_iou_loss",
    "box_iou_loss": "generalized_box_iou_loss",
    "box_iou_matrix": "box_iou",
    "sigmoid_focal_loss_elements": "sigmoid_focal_loss",
    "softmax_focal_loss_elements": "softmax_focal_loss",
    "box_iou_quadri_pairs": "box_iou_quadri, aligned",
}


def test_every_op_has_a_scaling_bound():
    functions = {name for name in detops.__all__ if inspect.isfunction(getattr(detops, name))}
    bound = {name.split(",")[0] for name in {*CASES.PAIRS, *CASES.LINEAR}}
    assert functions - NOT_OPS == bound & {*detops.__all__}
    assert functions & NOT_OPS == NOT_OPS and not NOT_OPS & CONTRACTS.keys()
    for op in schema_ops():
        base_name = op.removesuffix("_forward").removesuffix("_backward")
        equivalents = [
            op_name for prefix, op_name in EQUIVALENT_OPS.items() if op.startswith(prefix)
        ]
        assert {base_name, *equivalents} & {*CASES.PAIRS, *CASES.LINEAR}, op


@pytest.mark.parametrize("op", [*CASES.PAIRS, *CASES.LINEAR])
@pytest.mark.parametrize("n", [1, 3])
def test_benchmark_cases_build_calls_of_any_size(op, n):
    result = LIMITS.call_maker(op)(n)()
    first = result if isinstance(result, torch.Tensor) else result[0]
    if isinstance(first, torch.Tensor) and first.requires_grad:
        first.sum().backward()


def _large_call(op, passes):
    """Returns the smallest call with 32 MiB of arguments and results, or of 0.1 seconds."""
    n, seconds, size = 8, 0.0, 0
    while size < 32 << 20 and seconds < 0.1:
        n *= 2
        call = LIMITS.call_maker(op)(n)
        start = time.process_time()
        results = LIMITS.tensors(passes(call))
        seconds = time.process_time() - start
        size = sum(t.nbytes for t in LIMITS.argument_tensors(call) + results)
    return call


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(detops._C.emulated, reason="tests CPU kernels")
@NEEDS_NO_SANITIZER
@pytest.mark.parametrize("op", [*CASES.PAIRS, *CASES.LINEAR])
@pytest.mark.parametrize("passes", [LIMITS.run_forward, LIMITS.run_both_passes])
def test_scratch_is_below_four_times_arguments_and_results(op, passes):
    scratch, arguments_and_results = LIMITS.measure_memory(_large_call(op, passes), passes)
    assert scratch < 4 * arguments_and_results + (16 << 20), (
        f"{scratch / 2**20:.0f} MiB of scratch for {arguments_and_results / 2**20:.0f} MiB"
    )
