# SPDX-License-Identifier: MIT
"""The installed command: help and version without PyTorch, and imports of the package."""

import os
import re
import subprocess
import sys

import pytest
from needs import NEEDS_NO_SANITIZER
from paths import PACKAGE, ROOT, SUPPORT

import detops

# Does what the console script does, then prints whether PyTorch was imported.
SCRIPT = """
import sys
sys.argv = ["detops", *{arguments!r}]
from {module} import {function}
status = {function}()
print("torch" in sys.modules, "detops" in sys.modules, status)
"""


def entry_point():
    text = (ROOT / "pyproject.toml").read_text()
    return re.search(r'^detops = "(?P<module>.+):(?P<function>.+)"', text, re.M).groupdict()


def python(*options, folder=PACKAGE.parent, **environment):
    result = subprocess.run(
        [sys.executable, *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE.parent}"} | environment,
    )
    return result.returncode, result.stdout, result.stderr


COMMANDS = ("train", "eval", "detect", "weights", "export", "demo", "serve", "bench", "compat")
COMMANDS += ("data", "info")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text", "status"),
    [
        (["--help"], "detect", 0),
        ([], "Usage", 2),
        *(([command, "--help"], f"detops {command}", 0) for command in COMMANDS),
        (["nonsense"], "", 2),
        (["detect"], "", 2),
        (["detect", "a.jpg", "--score-threshold", "2"], "", 2),
    ],
)
def test_help_and_usage_errors_do_not_import_torch(arguments, text, status):
    code, out, error = python("-c", SCRIPT.format(arguments=arguments, **entry_point()))
    assert code == 0, error
    assert out.splitlines()[-1] == f"False False {status}"
    assert text in out


def test_without_typer_the_message_names_the_extra():
    script = "import sys; sys.modules['typer'] = None; import detops_command as command; "
    script += "sys.exit(command.main())"
    status, out, error = python("-c", script)
    assert (status, out) == (2, "")
    assert error == (
        "detops: error: the command line requires typer: pip install 'detops[detector]'\n"
    )


@pytest.mark.parametrize("arguments", [["--help"], ["detect", "--help"]])
def test_help_imports_few_modules(arguments):
    code = SCRIPT.format(arguments=arguments, **entry_point())
    code += "print(len(sys.modules), *sorted({name.partition('.')[0] for name in sys.modules}))"
    _, out, error = python("-c", code)
    count, *packages = out.splitlines()[-1].split()
    assert not {"torch", "numpy", "PIL", "rich", "omegaconf", "torchvision"} & set(packages), error
    assert int(count) < 350


def test_version_option_does_not_import_torch(tmp_path):
    # The metadata of an installation.
    metadata_folder = tmp_path / f"detops-{detops.__version__}.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(f"Name: detops\nVersion: {detops.__version__}\n")
    script = SCRIPT.format(arguments=["--version"], **entry_point())
    _, out, error = python("-c", script, folder=tmp_path)
    assert out.splitlines() == [f"detops {detops.__version__}", "False False 0"], error


@pytest.mark.slow
def test_installed_command_runs_the_package():
    script = SCRIPT.format(arguments=["info"], **entry_point())
    _, out, error = python("-c", script + "import detops; print(detops.nms)")
    assert "instruction set" in out and "True True 0" in out, error
    status, out, error = python("-m", "detops", "--version")
    assert (status, out) == (0, f"detops {detops.__version__}\n"), error


# The parent imports PyTorch once; each child imports detops in its own way.
IMPORTS = """
import os
import torch
for code in (
    "import detops; detops.nms; detops._C.nms; torch.ops.detops.nms",
    "from detops import nms; nms",
    "import detops._C; detops._C.nms",
    "import detops; detops.ops.nms, detops.patch_torchvision, detops.__version__",
    "from detops.cli import main",
):
    child = os.fork()
    if not child:
        exec(code)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
"""


@pytest.mark.slow
def test_package_can_be_imported_in_every_way():
    status, _, error = python("-c", IMPORTS)
    assert status == 0, error


WITHOUT_MEMORY = """
import os
import detops.cli
from faults.process import disable_malloc_cache, limit_memory

def takes_all(*_, **__):
    disable_malloc_cache()
    limit_memory(os.getpid(), 0)
    held, size = [], 1 << 20
    while size:
        try:
            held.append(bytearray(size))
        except MemoryError:
            size //= 2
    raise MemoryError

detops.cli.app = takes_all
os._exit(detops.cli.main(["info"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@NEEDS_NO_SANITIZER
def test_command_without_memory_reports_it():
    status, _, error = python("-c", WITHOUT_MEMORY, folder=SUPPORT)
    assert (status, error) == (1, "detops: error: there is not enough memory\n")
