"""docs/performance*.md as their script generates them from the results, and the README plot."""

import json
import os
import re
import shutil

import pytest
from paths import ROOT
from test_docs_site import load_module

SCRIPT = ROOT / "benchmarks" / "page.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree")


@pytest.fixture
def page():
    pytest.importorskip("matplotlib")
    return load_module(SCRIPT)


def test_performance_pages_match_the_results(page, tmp_path):
    docs = ROOT / "docs"
    for name in (page.PAGE, page.FIGURES):
        shutil.copy(docs / name, tmp_path)
    page.write(tmp_path, tmp_path)
    for name in (page.PAGE, page.FIGURES):
        assert (tmp_path / name).read_text() == (docs / name).read_text()
    shown = re.findall(r"\(\.\./benchmarks/results/(.*?\.svg)\)", (docs / page.PAGE).read_text())
    assert set(shown) == {path.name for path in tmp_path.glob("*.svg")}
    assert all((page.RESULTS / name).is_file() for name in shown)


def test_bar_compares_with_the_fastest_other_library(page, monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(page, "bars", lambda ratios, path, label: drawn.update(ratios["detops"]))
    times = {"detops": 0.5, "torchvision": 4.0, "OpenCV": 2.0}
    page.plot_peers({"cases": {"nms": times}}, tmp_path)
    assert drawn == {"nms\nbeside OpenCV": [4.0]}


def test_all_results_come_from_the_processor_of_the_newest_peers(page, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="contains no peers-"):
        page.newest_peers()
    for timestamp, name in enumerate(
        ("peers-intel.json", "peers-amd.json", "amd.json", "intel.json")
    ):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (timestamp, timestamp))
    assert page.newest_peers().name == "peers-amd.json"
    os.utime(tmp_path / "peers-intel.json", (9, 9))
    assert page.full_results(page.newest_peers()) == tmp_path / "intel.json"
    (tmp_path / "intel.json").unlink()
    with pytest.raises(SystemExit, match="intel.json: no such file.*peers-intel.json"):
        page.write(ROOT / "docs", tmp_path)
    assert not list(tmp_path.glob("*.svg"))


def test_readme_plot_has_eight_bars(page):
    assert "](benchmarks/results/peers.svg)" in (ROOT / "README.md").read_text()
    report = json.loads(page.newest_peers().read_text())
    assert len(report["cases"]) == 8
    assert all(len(times) > 1 and "detops" in times for times in report["cases"].values())
