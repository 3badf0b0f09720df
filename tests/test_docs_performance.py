"""docs/performance.md is what its script makes of the results, and the README shows its plot."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "page.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree")


@pytest.fixture
def page():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("page", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_results(page, tmp_path):
    copy = tmp_path / "performance.md"
    copy.write_text(page.PAGE.read_text())
    page.write(copy, tmp_path)
    assert copy.read_text() == page.PAGE.read_text()
    shown = set(re.findall(r"\(\.\./benchmarks/results/(.*?\.svg)\)", page.PAGE.read_text()))
    assert shown == {path.name for path in tmp_path.glob("*.svg")}
    assert all((page.RESULTS / name).is_file() for name in shown)


def test_a_bar_is_the_fastest_other_library(page, monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(page, "bars", lambda ratios, path, label: drawn.update(ratios["detops"]))
    times = {"detops": 0.5, "torchvision": 4.0, "OpenCV": 2.0}
    page.plot_peers({"cases": {"nms": times}}, tmp_path)
    assert drawn == {"nms\nbeside OpenCV": [4.0]}


def test_the_readme_shows_eight_bars(page):
    assert "](benchmarks/results/peers.svg)" in (ROOT / "README.md").read_text()
    (report,) = page.read("peers-*.json")[:1]
    assert len(report["cases"]) == 8
    assert all(len(times) > 1 and "detops" in times for times in report["cases"].values())
