import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._ops import OpOverloadPacket

import detops
from detops.stub import stub

PACKAGE = Path(detops.__file__).parent


def python(code, path=PACKAGE.parent, **environment):
    """Runs code in a fresh interpreter that finds detops at `path`."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=path,
        env=os.environ | {"PYTHONPATH": str(path)} | environment,
    )
    return result.returncode, result.stdout.strip(), result.stderr


def test_the_extension_can_be_imported_first():
    code, out, err = python(
        "import detops._C as C; import torch; print(C.nms is torch.ops.detops.nms)"
    )
    assert (code, out) == (0, "True"), err


def schemas():
    """The names of the ops that are registered, whatever Python makes of them."""
    names = torch._C._dispatch_get_all_op_names()
    return {name.removeprefix("detops::") for name in names if name.startswith("detops::")}


def test_every_op_is_the_dispatchers():
    packets = {n: o for n, o in vars(detops._C).items() if isinstance(o, OpOverloadPacket)}
    assert packets.keys() == schemas()
    for name, packet in packets.items():
        assert packet is getattr(torch.ops.detops, name)


def test_the_stub_is_that_of_the_contracts():
    """As `make stub` writes it, but for where lines are broken."""

    def without_layout(text):
        return re.sub(r"\s+|,(?=\s*\))", "", text)

    written = (PACKAGE / "_C.pyi").read_text()
    assert without_layout(written) == without_layout(stub())
    functions = {node.name for node in ast.parse(written).body if isinstance(node, ast.FunctionDef)}
    values = {n.target.id for n in ast.parse(written).body if isinstance(n, ast.AnnAssign)}
    assert functions | values == {name for name in vars(detops._C) if not name.startswith("__")}


def test_public_names_are_there():
    for name in detops.__all__:
        assert hasattr(detops, name)


# An editable installation would find what the copy lacks.
ALONE = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in f"{f}{type(f)}"]
import detops
"""


@pytest.fixture
def copied(tmp_path):
    copy = tmp_path / "detops"
    copy.mkdir()
    for source in [*PACKAGE.glob("*.py"), *PACKAGE.glob("_C*.so")]:
        shutil.copy(source, copy)
    shutil.copytree(PACKAGE / "ops", copy / "ops")
    return copy


def test_another_torch_is_explained(copied):
    build = copied / "_build.py"
    build.write_text('TORCH = "2.3.1+cu121"\nPYTHON = "3.11.0"\nCUDA = None\n')
    code, _, err = python(ALONE, copied.parent)
    assert code != 0
    last = err.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: detops._C does not fit this PyTorch: it was built for torch 2.3.1"
    )
    assert f"installed: torch {torch.__version__}" in last and "pip install" in last


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_a_missing_extension_is_explained(copied, broken):
    for file in copied.glob("_C*.so"):
        file.unlink()
        if broken == "damaged":
            file.write_bytes(b"not a library")
    if broken == "missing":
        (copied / "_build.py").unlink(missing_ok=True)
    code, _, err = python(ALONE, copied.parent)
    last = err.strip().splitlines()[-1]
    assert code != 0 and last.startswith("ImportError: detops._C cannot be loaded: ")
    assert "pip install --no-build-isolation" in last


def test_instruction_set_follows_pytorch():
    show = "import detops; print(detops._C.cpu_isa())"
    assert python(show, ATEN_CPU_CAPABILITY="default")[1] == "baseline"
    expected = {"DEFAULT": "baseline", "NO AVX": "baseline", "AVX2": "avx2", "AVX512": "avx512"}
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in expected:
        assert detops._C.cpu_isa() == expected[capability]


def test_instruction_set_by_name():
    with pytest.raises(ValueError, match="expected auto, baseline, avx2 or avx512, got mmx"):
        detops._C.set_cpu_isa("mmx")
    detops._C.set_cpu_isa("baseline")
    assert detops._C.cpu_isa() == "baseline"
    detops._C.set_cpu_isa("auto")


def test_raw_ops_say_that_they_have_no_derivative():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    out = torch.ops.detops.roi_align_forward(x, torch.zeros(1, 5), 1.0, 1, 1, 1)
    with pytest.raises(RuntimeError, match="derivative for detops::roi_align_forward is not"):
        out.sum().backward()


@pytest.mark.slow
def test_type_checkers_see_the_editable_install(tmp_path):
    """Types are found by files alone: a checker runs no import hook."""
    code = "import importlib.util as u; s = u.find_spec('detops'); print(s.origin if s else '')"
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    where = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=outside
    )
    if where.stdout.strip() != str(PACKAGE / "__init__.py"):
        pytest.skip("this source tree is not installed")
    (tmp_path / "user.py").write_text("import detops\n\nreveal_type(detops.nms)\n")
    command = ("-m", "mypy", "--follow-imports", "silent", "user.py")
    seen = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, env=outside
    )
    assert seen.returncode == 0, seen.stdout
    assert "iou_threshold: float" in seen.stdout
