"""Commands of docs/detect.md, run as written."""

import json
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from paths import ROOT
from PIL import Image
from torchvision_networks import cache_random_weights

from detops import cli
from detops.cli.options import TREE_CROWNS
from detops.engine.journal import MERGED
from detops.engine.video import VideoWriter

PAGE = ROOT / "docs" / "detect.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree"),
]
PROGRAMS = {
    "detops": "-m detops",
    "torchrun": "-m torch.distributed.run",
}


def blocks():
    """Returns the blocks of indented lines; test_examples.py runs the example with Ray."""
    found = re.findall(r"(?m)(?:^    .*\n)+", PAGE.read_text())
    return [block for block in found if "with_ray" not in block]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Creates a folder with the files and the programs that the page's commands use."""
    folder = tmp_path_factory.mktemp("page")
    photograph = Image.open(TREE_CROWNS / "val.jpg").crop((0, 0, 160, 120))
    for name in ("photo.jpg", "street.jpg", "photographs/a.jpg", "photographs/deep/b.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photograph.save(folder / name)
    (folder / "list.txt").write_text("photo.jpg\n")
    for name, options in PROGRAMS.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        cache_random_weights("maskrcnn_resnet50_fpn_v2", folder / "home", patch)
    return folder


def run(command, folder):
    """Runs a command of the page; in this process if it is one of detops alone."""
    if command.startswith("detops ") and "|" not in command:
        assert cli.main(shlex.split(command)[1:]) == 0, command
        return
    arguments = ["bash", "-euo", "pipefail", "-c", command]
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", blocks() if PAGE.exists() else ())
def test_commands_of_the_page_write_their_results(folder, block, monkeypatch):
    if "clip.mp4" in block:
        pytest.importorskip("av")
        with VideoWriter(folder / "clip.mp4", Fraction(5)) as writer:
            for _ in range(3):
                writer.add(Image.open(folder / "photo.jpg"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("TORCH_HOME", str(folder / "home"))
    for command in block.replace("\\\n", "").splitlines():
        run(command.strip(), folder)
        match = re.search(r"detops detect .*--output (\w+)", command)
        if match is None:
            continue
        output = match[1]
        entries = [json.loads(line) for line in (folder / output / MERGED).open()]
        assert entries, output
        images = [Path(entry["picture"]) for entry in entries if "picture" in entry]
        assert all((folder / image).is_file() for image in images)
        assert bool(images) == ("--without-pictures" not in command)
