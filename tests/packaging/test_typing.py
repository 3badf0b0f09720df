"""A user's program passes the strict modes of mypy and pyright."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from paths import PACKAGE, SUPPORT

import detops
from detops.modeling import GeneralizedRCNN

PROGRAM = SUPPORT / "typing_user.py"
# Mistakes that a checker must report; otherwise it has seen no types.
MISTAKES = """
import torch
import detops
from detops.config import load_config
from detops.modeling import build_detection_model

detops.nms("boxes", torch.ones(1), 0.5)
detops.RoIAlign(7, 0.25, 2)(torch.ones(1))
detops.LLTM(3, 4)(torch.ones(2, 3), (torch.ones(2, 4), torch.ones(2, 4)))[0].soup()
build_detection_model(load_config())([torch.ones(3, 9, 9)], targets=7)
"""

pytestmark = pytest.mark.slow


def run_mypy(program, folder, environment):
    pytest.importorskip("mypy")
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--no-error-summary"]
    options += ["--cache-dir", folder.parent / "mypy"]  # shared by the tests of a run
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *options, program],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert result.returncode in (0, 1), result.stderr
    return result.stdout


def mypy(program, folder):
    """Returns the errors of mypy by line; users do not see those inside the package."""
    # A user's mypy sees an installed package; here it may lie next to its tests.
    output = run_mypy(program, folder, os.environ | {"MYPYPATH": str(PACKAGE.parent)})
    return {int(line): message for line, message in re.findall(r":(\d+): error: (.*)", output)}


def pyright(program, folder):
    """Returns the errors of pyright by line."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright"]
    if subprocess.run([*command, "--version"], capture_output=True).returncode:
        pytest.skip("pyright does not run: it needs Node.js")
    (folder / "program.py").write_text(program.read_text())
    config = {"typeCheckingMode": "strict", "include": ["program.py"]}
    config |= {"extraPaths": [str(PACKAGE.parent)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    result = subprocess.run(
        [*command, "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return {
        found["range"]["start"]["line"] + 1: found["message"]
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }


@pytest.mark.parametrize("checker", [pytest.param(mypy, marks=pytest.mark.exhaustive), pyright])
def test_user_program_passes_strict_type_checks(checker, tmp_path):
    assert checker(PROGRAM, tmp_path) == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_mistakes_are_reported(checker, tmp_path):
    program = tmp_path / "mistakes.py"
    program.write_text(MISTAKES)
    prefixes = ("detops.", "build_")
    lines = {k for k, line in enumerate(MISTAKES.splitlines(), 1) if line.startswith(prefixes)}
    assert set(checker(program, tmp_path)) == lines


def test_type_checkers_see_the_editable_install(tmp_path):
    """Type checkers find types only through files: they run no import hooks."""
    code = "import importlib.util as u; s = u.find_spec('detops'); print(s.origin if s else '')"
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    origin = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    if origin.stdout.strip() != str(PACKAGE / "__init__.py"):
        pytest.skip("this source tree is not installed")
    program = tmp_path / "user.py"
    program.write_text("import detops\n\nreveal_type(detops.nms)\n")
    output = run_mypy(program, tmp_path, environment)
    assert "error" not in output and "iou_threshold: float" in output


@pytest.mark.parametrize("module", [detops.RoIAlign, detops.DeformConv2d, GeneralizedRCNN])
def test_typed_modules_keep_the_call_of_nn_module(module):
    """The types exist only for checkers, so a call costs nothing more at run time."""
    assert module.__call__ is torch.nn.Module.__call__
