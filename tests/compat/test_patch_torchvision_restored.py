"""``detops.patch_torchvision()`` restores everything it replaced, however it ends."""

import subprocess
import sys
import warnings

import pytest
import torch
from patched import BOXES, PATCHED_FUNCTIONS, SCORES, record_ops
from torchvision.ops import box_iou, nms

import detops
from detops.compat.torchvision.functions import FUNCTIONS
from detops.compat.torchvision.kernels import KERNELS


def state():
    """Returns everything that a patch could leave behind."""
    attributes = {
        (name, key): id(value)
        for name, module in sys.modules.copy().items()
        if name.split(".")[0] == "torchvision"
        for key, value in vars(module).items()
    }
    codes = {
        key: value.__code__
        for key, value in ((k, sys.modules[k[0]].__dict__[k[1]]) for k in PATCHED_FUNCTIONS)
    }
    kernels = {name: torch._C._dispatch_dump(f"torchvision::{name}") for name in KERNELS}
    return attributes, codes, kernels


def patched():
    return record_ops(lambda: (nms(BOXES, SCORES, 0.5), box_iou(BOXES, BOXES)))[1] != set()


def test_everything_is_restored():
    before = state()
    with pytest.raises(KeyError), detops.patch_torchvision():
        assert patched() and state() != before
        raise KeyError
    assert state() == before and not patched()

    outer = detops.patch_torchvision()
    with detops.patch_torchvision() as inner:
        assert patched()
    assert patched()
    inner.restore()  # a second time
    assert patched()
    second = detops.patch_torchvision()
    outer.restore()  # not the last one opened
    assert patched()
    second.restore()
    assert state() == before and not patched()


def test_handle_can_patch_again():
    before = state()
    patch = detops.patch_torchvision()
    patch.restore()
    for _ in range(2):
        with patch:
            assert patched()
        assert not patched() and state() == before
    with patch:
        with patch:
            assert patched()
        assert patched()  # until the outer block ends
        patch.restore()
        assert not patched()
    assert state() == before


def test_decorator_patches_only_during_the_call():
    before = state()

    @detops.patch_torchvision()
    def decorated(fail):
        """Docs."""
        assert patched()
        if fail:
            raise KeyError
        return 3

    assert state() == before
    assert decorated(False) == 3 and decorated.__doc__ == "Docs."
    with pytest.raises(KeyError):
        decorated(True)
    assert state() == before


def test_patch_that_fails_half_way_is_undone(monkeypatch):
    before = state()
    monkeypatch.setitem(FUNCTIONS, ("torchvision.ops.boxes", "gone"), lambda *_: None)
    with pytest.raises(AttributeError, match="gone"):
        detops.patch_torchvision()
    assert state() == before
    monkeypatch.undo()
    with detops.patch_torchvision():
        assert patched()


def test_patching_emits_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with detops.patch_torchvision():
            pass


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.slow
def test_torchvision_is_imported_only_when_patched():
    """Commands do not import SymPy either: together the two take as long to import as PyTorch."""
    code = "import sys, detops.engine.command; print({'torchvision', 'sympy'} & {*sys.modules});"
    result = run_python(code + "detops.patch_torchvision(); print('torchvision' in sys.modules)")
    assert result.stdout.splitlines() == ["set()", "True"], result.stderr


@pytest.mark.slow
def test_missing_torchvision_is_reported():
    result = run_python(
        "import sys; sys.modules['torchvision'] = None\nimport detops\ndetops.patch_torchvision()"
    )
    assert "ImportError: detops.patch_torchvision: torchvision cannot be imported" in result.stderr
