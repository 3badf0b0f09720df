import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from paths import PACKAGE
from torch._ops import OpOverloadPacket

import detops
from detops.header import header
from detops.stub import stub


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


@pytest.mark.slow
def test_extension_can_be_imported_before_torch():
    code, out, err = python(
        "import detops._C as C; import torch; print(C.nms is torch.ops.detops.nms)"
    )
    assert (code, out) == (0, "True"), err


def registered_ops():
    """Returns the names of all registered ops, whether or not Python exposes them."""
    names = torch._C._dispatch_get_all_op_names()
    return {name.removeprefix("detops::") for name in names if name.startswith("detops::")}


def test_every_op_is_its_dispatcher_packet():
    packets = {n: o for n, o in vars(detops._C).items() if isinstance(o, OpOverloadPacket)}
    assert packets.keys() == registered_ops()
    for name, packet in packets.items():
        assert packet is getattr(torch.ops.detops, name)


def test_stub_matches_the_contracts():
    """`make stub` writes the stub; its line breaks may differ."""

    def without_layout(text):
        return re.sub(r"\s+|,(?=\s*\))", "", text)

    stored = (PACKAGE / "_C.pyi").read_text()
    assert without_layout(stored) == without_layout(stub())
    functions = {node.name for node in ast.parse(stored).body if isinstance(node, ast.FunctionDef)}
    values = {n.target.id for n in ast.parse(stored).body if isinstance(n, ast.AnnAssign)}
    assert functions | values == {name for name in vars(detops._C) if not name.startswith("__")}


def test_header_matches_the_contracts():
    """`make header` writes the header; its line breaks may differ."""
    stored = (PACKAGE / "include" / "detops" / "ops.h").read_text()
    assert re.sub(r"\s+", "", stored) == re.sub(r"\s+", "", header())


def test_cmake_config_has_the_package_version():
    folder = Path(detops.cmake_prefix_path) / "detops"
    assert (folder / "detopsConfig.cmake").exists()
    version = (folder / "detopsConfigVersion.cmake").read_text()
    number = detops.__version__.split(".dev")[0]  # CMake compares only numbers
    assert f'set(PACKAGE_VERSION "{number}")' in version


def test_public_names_exist():
    for name in detops.__all__:
        assert hasattr(detops, name)


# An editable installation would supply what the copy lacks.
IMPORT_COPY = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in f"{f}{type(f)}"]
import detops
"""


@pytest.fixture
def package_copy(tmp_path):
    copy = tmp_path / "detops"
    copy.mkdir()
    for source in [*PACKAGE.glob("*.py"), *PACKAGE.glob("_C*.so"), PACKAGE / "libdetops.so"]:
        shutil.copy(source, copy)
    for subpackage in ("ops", "compat", "optimization"):
        shutil.copytree(PACKAGE / subpackage, copy / subpackage)
    shutil.copy(PACKAGE.parent / "detops_hook.py", tmp_path)
    return copy


@pytest.mark.slow
def test_old_torch_raises_a_clear_error(package_copy):
    old = "import torch; torch.__version__ = '2.9.1+cu128'\n" + IMPORT_COPY
    code, _, err = python(old, package_copy.parent)
    last = err.strip().splitlines()[-1]
    assert code != 0
    assert last.startswith("ImportError: detops needs torch 2.10 or newer; installed: torch 2.9.1")


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["missing", "damaged"])
@pytest.mark.parametrize("library", ["_C*.so", "libdetops.so"])
def test_missing_or_damaged_library_raises_a_clear_error(package_copy, library, broken):
    (file,) = package_copy.glob(library)
    file.unlink()
    if broken == "damaged":
        file.write_bytes(b"not a library")
    code, _, err = python(IMPORT_COPY, package_copy.parent)
    last = err.strip().splitlines()[-1]
    assert code != 0 and last.startswith("ImportError: detops._C cannot be loaded: ")
    assert "pip install --no-build-isolation" in last


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="looks at what PyTorch's own CUDA needs")
def test_damaged_cuda_library_leaves_the_cpu_ops(package_copy):
    (package_copy / "libdetops_cuda.so").write_bytes(b"not a library")
    script = IMPORT_COPY + "print(detops._C.cuda_version, detops.nms.__name__)"
    code, out, err = python(script, package_copy.parent)
    assert (code, out) == (0, "None nms") and "detops runs on the CPU only" in err


@pytest.mark.slow
def test_instruction_set_follows_pytorch():
    script = "import detops; print(detops._C.cpu_isa())"
    assert python(script, ATEN_CPU_CAPABILITY="default")[1] == "baseline"
    expected = {"DEFAULT": "baseline", "NO AVX": "baseline", "AVX2": "avx2", "AVX512": "avx512"}
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in expected:
        assert detops._C.cpu_isa() == expected[capability]


def test_instruction_set_is_set_by_name():
    with pytest.raises(ValueError, match="expected auto, baseline, avx2 or avx512, got mmx"):
        detops._C.set_cpu_isa("mmx")
    detops._C.set_cpu_isa("baseline")
    assert detops._C.cpu_isa() == "baseline"
    detops._C.set_cpu_isa("auto")


def test_raw_op_warns_of_a_missing_derivative():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    out = torch.ops.detops.roi_align_forward(x, torch.zeros(1, 5), 1.0, 1, 1, 1)
    with pytest.warns(
        UserWarning, match="roi_align_forward: an autograd kernel was not registered"
    ):
        out.sum().backward()
    assert x.grad is None
