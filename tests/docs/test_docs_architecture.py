"""The op table of docs/contracts.md, compared with the contracts and the gradients."""

import contextlib

import pytest
import torch
from paths import ROOT
from raw_calls import arguments
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from detops.op_table import BEGIN, END, derivative_kind, table
from detops.registration import CONTRACTS

PAGE = ROOT / "docs" / "contracts.md"


@pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")
def test_op_table_matches_the_contracts():
    """`python -m detops.op_table docs/contracts.md` writes the table."""
    assert PAGE.read_text().split(BEGIN)[1].split(END)[0].strip() == table().strip()


def require_gradient(x):
    return x.clone().requires_grad_() if x.is_floating_point() else x


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("op", [op for op, c in CONTRACTS.items() if "!" not in c.schema])
def test_ops_have_gradients_exactly_as_the_table_states(op):
    inputs = tree_map_only(Tensor, require_gradient, arguments(op))
    leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
    results = [x for x in tree_leaves(getattr(torch.ops.detops, op)(**inputs)) if x.requires_grad]
    if results:
        with contextlib.suppress(RuntimeError):  # if no derivative is implemented
            sum(x.sum() for x in results).backward()
    has_gradient = any(x.grad is not None for x in leaves)
    # An index has no derivative, even if the op computes it from differentiable inputs.
    assert has_gradient == (derivative_kind(op) != "-" and op != "remove_small_boxes")
