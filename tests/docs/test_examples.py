import re
import subprocess
import sys

import pytest
import torch
from paths import ROOT
from PIL import Image

from detops.cli.options import TREE_CROWNS
from detops.engine import Detector

EXAMPLES = ROOT / "examples"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree"),
]


def run(*command):
    result = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True
    )
    return result.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("network", "names"), [("mlp", {"Python", "C++"}), ("lltm", {"Python", "C++", "nn.LSTM"})]
)
def test_compare_prints_times_and_plots_them(network, names, tmp_path):
    image = tmp_path / "times.png"
    out = run(
        EXAMPLES / "compare.py",
        network,
        "--seconds=0.2",
        "--steps=4",
        "--state=16",
        "--plot",
        image,
    )
    rows = re.findall(r"^  (\S+) +((?:[\d.]+ +[\d.]+x *){3})$", out, re.M)
    assert {name for name, _ in rows} == names
    for _, cells in rows:
        assert all(float(x) > 0 for x in re.findall(r"([\d.]+) ", cells))
    assert image.stat().st_size > 0


def test_train_sequence_learns():
    out = run(EXAMPLES / "train_sequence.py", "--steps=8", "--state=24", "--iterations=600")
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", out)]
    (error,) = re.findall(r"error on new sequences ([\d.]+)", out)
    assert losses[0] > 0.1 and float(error) < 0.01


@pytest.mark.exhaustive
def test_ray_example_finds_what_the_detector_finds(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "photographs"
    folder.mkdir()
    for i in range(3):
        Image.open(TREE_CROWNS / "val.jpg").crop((0, 0, 100 + 20 * i, 120)).save(
            folder / f"{i}.png"
        )
    (folder / "bad.png").write_bytes(b"nothing")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    options = ["--output", tmp_path / "found", "--detectors", 1]
    out = run(EXAMPLES / "detect_with_ray.py", folder, *options)
    assert f"4 images in {tmp_path / 'found'}, 1 of them unreadable" in out
    rows = pandas.read_parquet(tmp_path / "found").set_index("path")
    detector = Detector.from_checkpoint(TREE_CROWNS / "weights.pt", "cpu")
    for path, row in rows.iterrows():
        if path.endswith("bad.png"):
            assert "not a readable image" in row.problem and len(row.detections) == 0
            continue
        expected = detector.detect(path, 0.5)
        boxes = torch.tensor([found["box"].tolist() for found in row.detections])
        assert row.problem == "" and len(boxes) > 0
        assert torch.allclose(boxes.float(), expected["boxes"], atol=0.05)
