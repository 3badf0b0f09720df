"""docs/getting-started.md: its Python, run as written, and what it prints."""

import re
import shutil

import pytest
from paths import ROOT

from detops.cli.options import DEFAULT_WEIGHTS, PACKAGE

PAGE = ROOT / "docs" / "getting-started.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")


def test_python_of_the_page_prints_what_its_comments_say(tmp_path, monkeypatch, capsys):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    shutil.copy(DEFAULT_WEIGHTS, tmp_path / "runs" / "mine" / "best.pt")
    shutil.copy(PACKAGE / "assets" / "tree_crowns" / "val.jpg", tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        exec(code, names)
        expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.M)
        assert capsys.readouterr().out.splitlines() == expected
