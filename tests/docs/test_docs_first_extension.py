"""The five files of docs/tutorial/0-five-files.md, built into an extension as written."""

import os
import re
import subprocess
import sys

import pytest
from paths import ROOT

PAGE = ROOT / "docs" / "tutorial" / "0-five-files.md"
FILE = re.compile(r"<!-- file (\S+) -->\n```\S+\n(.*?)\n```", re.S)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree"),
]


def run(folder, *command):
    clean_environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=clean_environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.exhaustive
def test_the_five_files_build_and_pass_their_test(tmp_path):
    files = dict(FILE.findall(PAGE.read_text()))
    assert len(files) == 5
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    for command in re.findall(r"^    python (.*)$", PAGE.read_text(), re.M):
        out = run(tmp_path, *command.split())
    assert "2 passed" in out
