"""Transposed matrices of a batch: every dtype, instruction set, layout and odd size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detops import _C

raw = torch.ops.detops
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@given(sizes=st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 40)), data=st.data())
def test_transpose_matches_pytorch(dtype, sizes, data):
    x = torch.randn(sizes).to(dtype)
    if data.draw(st.booleans()):
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    found = raw.batch_transpose(x)
    assert torch.equal(found, x.transpose(1, 2)) and found.is_contiguous()


def test_instruction_sets_keep_special_values(isa):
    x = torch.randn(2, 37, 49)
    x[0, 3, 4], x[1, 36, 48], x[1, 0, 0] = float("nan"), float("inf"), -0.0
    found, expected = raw.batch_transpose(x), x.transpose(1, 2).contiguous()
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_transpose_rejects_bad_shapes_and_dtypes():
    with pytest.raises(RuntimeError, match=r"detops.batch_transpose: input must be \[N, H, W\]"):
        _C.batch_transpose(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="detops.batch_transpose: input must be"):
        _C.batch_transpose(torch.zeros(1, 2, 3, dtype=torch.int64))
