"""``opcheck`` of every op, and the table of transforms in docs/ops.md."""

import re

import pytest
import torch
from op_transforms import BEGIN, END, PUBLIC, Call, differentiable, row, vmap
from paths import ROOT
from raw_calls import arguments, schema_ops
from torch import Tensor
from torch.utils._pytree import tree_map_only

PAGE = ROOT / "docs" / "ops.md"
TABLE = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def overload(name):
    return getattr(torch.ops.detops, name).default


# opcheck does not support ops that resize, write and return buffers.
PURE = [name for name in schema_ops() if not overload(name)._schema.is_mutable]


@pytest.mark.slow
@pytest.mark.parametrize("name", PURE)
def test_pure_ops_pass_opcheck(name):
    torch.library.opcheck(overload(name), (), arguments(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PUBLIC if differentiable(name)])
def test_differentiable_ops_pass_opcheck_with_gradients(name):
    arguments_ = tree_map_only(
        Tensor,
        lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
        arguments(name),
    )
    torch.library.opcheck(overload(name), (), arguments_)


# gdh is view(-1) there, which ATen rejects for tensors without elements.
@pytest.mark.parametrize("name", [n for n in PUBLIC if n != "gdh" and vmap(n) == "one call"])
def test_vmap_accepts_an_empty_batch(name):
    call = Call(name, lambda x: x.is_floating_point() or x.dtype == torch.bool, torch.float32)
    found = torch.vmap(call)(*(x.new_empty(0, *x.shape) for x in call.tensors))
    expected = [(0, *x.shape) for x in call(*call.tensors)]
    assert [x.shape for x in found] == expected


@pytest.mark.slow
@pytest.mark.skipif(not TABLE, reason="needs the source tree")
@pytest.mark.parametrize("name", PUBLIC)
def test_docs_table_contains_the_row_of_the_op(name):
    """`python tests/support/op_transforms.py docs/ops.md` writes the table."""
    assert row(name) in TABLE.split(BEGIN)[1].split(END)[0].splitlines()


@pytest.mark.skipif(not TABLE, reason="needs the source tree")
def test_docs_table_lists_exactly_the_public_ops():
    names = re.findall(r"^\| `(\w+)` \|", TABLE.split(BEGIN)[1].split(END)[0], re.M)
    assert names == PUBLIC
