"""Gradients of ops in every form that PyTorch records: exported, traced or scripted.

The calls use public functions and cover every op that has a derivative.
"""

import copy
import io
import subprocess
import sys
import warnings

import pytest
import torch
from export_training import TRAINED_CALLS, WeightedOp, assert_same, inputs, train_step
from paths import SUPPORT, environment

import detops

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
every_call = pytest.mark.parametrize("name", TRAINED_CALLS)


def test_calls_cover_every_op_with_a_derivative():
    names = {name.split(",")[0].split(" of ")[0] for name in TRAINED_CALLS}
    public = set(detops.ops.__all__)
    assert names >= detops.registration.DIFFERENTIABLE & public
    # Public functions call the ops that have no public function.
    assert detops.registration.DIFFERENTIABLE - public == {
        *("box_iou_matrix", "box_iou_aligned", "box_iou_loss", "deform_psroi_pool"),
        *("sigmoid_focal_loss_elements", "sigmoid_focal_loss_sum", "softmax_focal_loss_elements"),
    }


def traced(module, args, gradients=True):
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, args)  # also checks the trace


@pytest.fixture(scope="module")
def exported_files(tmp_path_factory):
    """Exports every call, strictly and not, and traces it with and without gradients."""
    folder = tmp_path_factory.mktemp("programs")
    failed = {}
    for name in TRAINED_CALLS:
        args = inputs(name)
        torch.save(train_step(WeightedOp(name), args), folder / f"{name}.expected")
        for kind in ("strict.pt2", "loose.pt2", "decomposed.pt2", "grad.ts", "plain.ts"):
            path = folder / f"{name}@{kind}"
            try:
                if kind.endswith(".pt2"):
                    strict = kind == "strict.pt2"
                    program = torch.export.export(WeightedOp(name), args, strict=strict)
                    if kind == "decomposed.pt2":
                        program = program.run_decompositions()
                    torch.export.save(program, path)
                else:
                    torch.jit.save(traced(WeightedOp(name), args, kind == "grad.ts"), str(path))
            except Exception as error:
                failed[path.name] = f"{type(error).__name__}: {str(error)[:300]}"
    return folder, failed


@pytest.mark.exhaustive
def test_every_call_exports_and_traces(exported_files):
    assert not exported_files[1]


@pytest.mark.exhaustive
def test_saved_programs_train_in_another_process(exported_files):
    run = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            str(SUPPORT / "export_training.py"),
            str(exported_files[0]),
        ],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert run.stdout.splitlines() == [f"finished {detops.__version__}"], run.stdout + run.stderr


@every_call
def test_trace_trains_like_eager_on_another_input(name):
    """A trace must not store values of its example."""
    module, copy_of = WeightedOp(name), copy.deepcopy
    args = inputs(name, seed=7)
    buffer = io.BytesIO()
    torch.jit.save(traced(copy_of(module), inputs(name)), buffer)
    buffer.seek(0)
    assert_same(train_step(torch.jit.load(buffer), args), train_step(copy_of(module), args))
