import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree"),
]


def run(*command):
    result = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=True
    )
    return result.stdout


@pytest.mark.parametrize(
    ("network", "names"), [("mlp", {"Python", "C++"}), ("lltm", {"Python", "C++", "nn.LSTM"})]
)
def test_compare(network, names, tmp_path):
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
