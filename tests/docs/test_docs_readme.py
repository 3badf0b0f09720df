"""The README, and the table of ops in docs/ops.md."""

import re

import pytest
import torch
from paths import ROOT

import detops

README = ROOT / "README.md"
OPS = ROOT / "docs" / "ops.md"
pytestmark = pytest.mark.skipif(not OPS.exists(), reason="needs the source tree")
# Public names that are neither ops nor modules of ops.
NOT_OPS = {"__version__", "cmake_prefix_path", "optimize", "patch_torchvision", "release_memory"}


def blocks():
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)


def test_readme_has_at_most_130_lines():
    assert len(README.read_text().splitlines()) <= 130


def test_first_readme_example_gives_the_printed_result():
    names = {}
    exec(blocks()[0], names)
    assert names["keep"].tolist() == [0, 2] and "tensor([0, 2])" in blocks()[0]
    assert names["pooled"].shape == (2, 256, 7, 7)
    assert names["features"].grad.abs().sum() > 0


def test_other_readme_examples_use_existing_names():
    for block in blocks()[1:]:
        for name in re.findall(r"detops\.([\w.]+)\(", block):
            value = detops
            for attribute in name.split("."):
                value = getattr(value, attribute)
        for line in re.findall(r"^from detops.*$", block, re.M):
            exec(line, {})


def test_ops_in_the_readme_table_exist():
    rows = re.findall(r"^\| \[[\w ]+\]\((docs/api/\w+\.md)\) \| (.*) \|$", README.read_text(), re.M)
    assert len(rows) == 8
    for page, names in rows:
        text = (ROOT / page).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert name in detops.ops.__all__ and f":: {name}\n" in text


def test_every_op_is_in_the_ops_table():
    rows = "\n".join(re.findall(r"^\|.*$", OPS.read_text(), re.M))
    listed = set(re.findall(r"`(\w+)`", rows))
    missing = set(detops.__all__) - NOT_OPS - listed - {"Axpy", "register_tensor_methods"}
    assert not missing
    assert listed <= set(detops.__all__), listed - set(detops.__all__)


def test_nms_supports_the_dtypes_in_the_readme():
    boxes = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9]])
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert f"{dtype}".removeprefix("torch.") in README.read_text()
        assert detops.nms(boxes.to(dtype), torch.ones(2, dtype=dtype), 0.5).tolist() == [0]
