"""`detops.compat.provide`, the import hook behind it and `detops compat`."""

import importlib
import importlib.machinery
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch
from paths import PACKAGE

import detops
import detops_hook
from detops.compat import provide

EXTENSIONS = [(name, *places) for name, places in detops_hook.SUPPLIED.items()]
EMPTY = {name: "" for name in detops_hook.SUPPLIED}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Writes packages that only import their extension modules, which do not exist."""
    for name, extension, _ in EXTENSIONS:
        name = f"{name}_user"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"import {extension} as extension\n")
        (tmp_path / extension.split(".")[0]).mkdir(exist_ok=True)
        (tmp_path / extension.split(".")[0] / "__init__.py").write_text("")
    imported = {n: m for n, m in sys.modules.items() if n.split(".")[0] in EMPTY}
    for name in imported:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in list(sys.modules):
        if name.split(".")[0].removesuffix("_user") in EMPTY:
            del sys.modules[name]


@pytest.mark.parametrize(("name", "extension", "ours"), EXTENSIONS)
def test_unchanged_import_finds_its_extension_in_detops(packages, name, extension, ours):
    before = sorted(packages.rglob("*.py"))
    with pytest.raises(ImportError):
        importlib.import_module(extension)
    with provide(name):
        module = importlib.import_module(extension)
        assert importlib.import_module(f"{name}_user").extension is module
        names = importlib.import_module(ours).contents()
        assert names.items() <= vars(module).items()
    assert extension not in sys.modules and detops_hook.FINDER not in sys.meta_path
    with pytest.raises(ImportError):
        importlib.import_module(extension)
    assert sorted(packages.rglob("*.py")) == before


def test_provide_ends_when_the_last_handle_is_removed(packages):
    first = provide("maskrcnn_benchmark")
    second = provide("maskrcnn_benchmark")
    assert "on" in repr(first)
    first.remove()
    first.remove()
    assert "removed" in repr(first)
    importlib.import_module("maskrcnn_benchmark._C")
    with second:
        pass
    with pytest.raises(ImportError):
        importlib.import_module("maskrcnn_benchmark._C")
    with first:  # a removed handle can be entered again
        importlib.import_module("maskrcnn_benchmark._C")
    assert "maskrcnn_benchmark._C" not in sys.modules


def test_other_imports_are_unaffected(packages):
    with provide("mmcv"):
        assert detops_hook.FINDER.find_spec("mmcv") is None
        assert detops_hook.FINDER.find_spec("detectron2._C") is None
        with pytest.raises(ModuleNotFoundError, match="mmcv._other"):
            importlib.import_module("mmcv._other")


def test_already_imported_extension_raises(packages):
    (packages / "mmcv" / "_ext.py").write_text("nms = None\n")
    importlib.invalidate_caches()
    importlib.import_module("mmcv._ext")
    with pytest.raises(RuntimeError, match="mmcv._ext was already imported from .*_ext.py"):
        provide("mmcv")
    del sys.modules["mmcv._ext"]
    with provide("mmcv"):  # takes precedence over an installed one
        assert importlib.import_module("mmcv._ext").nms is not None


def test_unknown_package_name_raises():
    with pytest.raises(ValueError, match="must be one of mmcv, detectron2, .*, got 'mmdet'"):
        provide("mmdet")


def test_provide_torchvision_equals_patch_torchvision():
    import torchvision

    body = torchvision.ops.boxes.masks_to_boxes.__code__
    with provide("torchvision"), detops.patch_torchvision():
        assert torchvision.ops.boxes.masks_to_boxes.__code__ is not body
    assert torchvision.ops.boxes.masks_to_boxes.__code__ is body


def test_detectron2_ops_exist_while_it_is_provided():
    with provide("detectron2"):
        assert torch.ops.detectron2.box_iou_rotated(torch.ones(1, 5), torch.ones(1, 5)) == 1
    assert not [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("detectron2::")]


def test_watched_import_runs_its_action_once_and_keeps_loader(packages):
    (packages / "watched_module.py").write_text("value = 1\n")
    values = []
    finder = detops_hook.Finder()
    finder.watch("watched_module", lambda: values.append(sys.modules["watched_module"].value))
    try:
        module = importlib.import_module("watched_module")
        importlib.import_module("watched_module")
        assert values == [1]
        assert module.__loader__ is module.__spec__.loader
        assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
        assert module.__loader__.get_source("watched_module") == "value = 1\n"
    finally:
        sys.meta_path.remove(finder)
        del sys.modules["watched_module"]


@pytest.mark.parametrize("name", detops_hook.SUPPLIED)
def test_enabled_package_is_provided_on_import(packages, monkeypatch, name):
    """Runs the line that `detops compat enable` writes for the start of Python."""
    monkeypatch.setattr(detops_hook, "FINDER", detops_hook.Finder())
    handles, original = [], detops_hook._provide
    with monkeypatch.context() as patch:
        patch.setattr(detops_hook, "_provide", lambda name: handles.append(provide(name)))
        detops_hook.install(name)
    assert original is detops_hook._provide
    assert handles == [] and name not in sys.modules
    try:
        user = importlib.import_module(f"{name}_user")
        assert user.extension.__spec__.loader is detops_hook.FINDER
        assert [str(h) for h in handles] == [f"<detops.compat.provide({name!r}), on>"]
        if name == "detectron2":
            assert torch.ops.detectron2.box_iou_rotated(torch.ones(1, 5), torch.ones(1, 5)) == 1
    finally:
        for handle in handles:
            handle.remove()
        detops_hook.FINDER.watched.clear()
        detops_hook.FINDER._remove_if_idle()


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def test_enabled_packages_are_stored_in_one_file(site):
    assert detops_hook.enabled() == []
    detops_hook.enable(["torchvision", "mmcv"])
    detops_hook.enable(["mmcv"])
    assert detops_hook.enabled() == ["mmcv", "torchvision"]
    (file,) = site.iterdir()
    assert file.name == "detops_compat.pth"
    text = file.read_text()
    assert text.startswith("import ") and text.count("\n") == 1
    detops_hook.disable(["torchvision", "detectron2"])
    assert detops_hook.enabled() == ["mmcv"]
    detops_hook.disable(["mmcv"])
    detops_hook.disable(["mmcv"])
    assert list(site.iterdir()) == []


def test_compat_command_enables_lists_and_disables(site, capsys):
    from detops import cli

    assert cli.main(["compat", "enable", "mmcv", "detectron2"]) == 0
    assert "mmcv, detectron2" in capsys.readouterr().out
    assert cli.main(["compat", "list"]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert lines == {n: "on" if n in ("mmcv", "detectron2") else "off" for n in detops_hook.NAMES}
    assert cli.main(["compat", "disable", "mmcv", "detectron2"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(": none")
    assert cli.main(["compat", "enable", "caffe2"]) == 2
    assert "caffe2: not one of mmcv, " in capsys.readouterr().err


def test_enable_reports_unwritable_site_packages(site, capsys, monkeypatch):
    from detops import cli

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(detops_hook.tempfile, "mkstemp", fail)
    assert cli.main(["compat", "enable", "mmcv"]) == 2
    assert "cannot be written (Permission denied)" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_enable_applies_to_every_python_of_an_environment(tmp_path):
    """Uses a separate environment with the packages of this one."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    folders = [str(PACKAGE.parent), *(p for p in sys.path if p.endswith("-packages"))]
    removed = {"PYTHONPATH", "PYTHONHOME"}
    environment = {k: v for k, v in os.environ.items() if k not in removed}

    def run(*arguments):
        result = subprocess.run(
            [python, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        return result.returncode, result.stdout, result.stderr

    site = Path(run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[1].strip())
    (site / "a_path.pth").write_text("\n".join(folders) + "\n")
    (site / "maskrcnn_benchmark").mkdir()
    (site / "maskrcnn_benchmark" / "__init__.py").write_text("")
    use_extension = "from maskrcnn_benchmark import _C; print(_C.nms.__module__)"
    print_imports = "import sys; print('torch' in sys.modules, 'torchvision' in sys.modules)"
    assert "ImportError" in run("-c", use_extension)[2]
    names = ("maskrcnn_benchmark", "torchvision")
    status, out, error = run("-m", "detops", "compat", "enable", *names)
    assert status == 0 and ", ".join(names) in out, error
    assert run("-c", print_imports) == (0, "False False\n", "")
    assert run("-c", use_extension)[1] == "detops.compat.maskrcnn_benchmark\n"
    patched = "import torchvision; print(torchvision.ops.boxes.box_iou.__code__.co_names)"
    assert "REPLACEMENTS" in run("-c", patched)[1]
    # An environment without detops starts without errors.
    (site / "a_path.pth").rename(site / "a_path")
    assert run("-c", "print(1)") == (0, "1\n", "")
    (site / "a_path").rename(site / "a_path.pth")
    assert run("-m", "detops", "compat", "disable", *names)[0] == 0
    assert not list(site.glob("detops_compat*"))
    assert "ImportError" in run("-c", use_extension)[2]
