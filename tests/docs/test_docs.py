"""Error messages that docs/troubleshooting.md quotes, compared with the real ones."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from paths import PACKAGE, ROOT

import detops

PAGE = ROOT / "docs" / "troubleshooting.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree"),
]


def run(*command, **environment):
    result = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert result.returncode != 0
    return result.stderr


def error_text(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return f"RuntimeError: {caught.value}"


def broken_copy(folder, torch_version):
    """Returns the error of importing a copy with a damaged library under a PyTorch version."""
    copy = folder / "detops"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("_C*.so", "assets", "__pycache__"))
    (copy / f"_C{next(PACKAGE.glob('_C*.so')).suffixes[0]}.so").write_bytes(b"no library")
    # An editable installation would supply what the copy lacks.
    no_editable = "sys.meta_path = [f for f in sys.meta_path if 'editable' not in f'{f}{type(f)}']"
    version = f"import torch; torch.__version__ = {torch_version!r}"
    return run(
        "-c",
        f"{version}; import sys; {no_editable}; sys.path.insert(0, {str(folder)!r}); import detops",
    )


def without_torch(folder):
    (folder / "torch.py").write_text("raise ImportError('no torch')\n")
    return run("setup.py", "--version", PYTHONPATH=str(folder))


def twice_differentiated():
    module = detops.MLP()
    x = torch.randn(2, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    grad.sum().backward()


MESSAGES = {
    "No compiler": [lambda tmp: run("setup.py", "--version", CXX="c++", PATH=str(tmp))],
    "No PyTorch while building": [without_torch],
    "PyTorch is too old": [lambda tmp: broken_copy(tmp, "2.3.1")],
    "Undefined symbol, or a damaged library": [lambda tmp: broken_copy(tmp, torch.__version__)],
    "The CUDA half is missing": [
        lambda tmp: run(
            "-c",
            "import torch.utils.cpp_extension as c; c.CUDA_HOME = None; import runpy;"
            "runpy.run_path('setup.py')",
            FORCE_CUDA="1",
        )
    ],
    "Wrong shape, dtype or device": [
        lambda _: error_text(lambda: detops.axpy(torch.ones(3), torch.ones(4))),
        lambda _: error_text(
            lambda: detops.nms(torch.ones(1, 4), torch.ones(1, device="meta"), 0.5)
        ),
    ],
    "A derivative that is not there": [lambda _: error_text(twice_differentiated)],
}


def quoted():
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, body = section.split("\n", 1)
        for k, block in enumerate(re.findall(r"```text\n(.*?)\n```", body, re.S)):
            yield title, k, block


def test_every_quoted_message_has_a_failure_case():
    assert [(t, k) for t, k, _ in quoted()] == [
        (t, k) for t, failures in MESSAGES.items() for k in range(len(failures))
    ]


@pytest.mark.parametrize(
    ("title", "k"), [(t, k) for t, f in MESSAGES.items() for k in range(len(f))]
)
def test_error_message_matches_the_quoted_text(title, k, tmp_path):
    (block,) = [b for t, n, b in quoted() if (t, n) == (title, k)]
    message = MESSAGES[title][k](tmp_path)
    position = 0
    for part in filter(None, block.split("...")):
        found = message.find(part, position)
        assert found >= 0, f"{part!r} is not in {message[position:]!r}"
        position = found + len(part)
