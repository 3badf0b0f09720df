"""docs/export.md: its commands and Python, run as written, and the files they write."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from needs import NEEDS_NO_SANITIZER
from paths import ROOT, environment
from PIL import Image

from detops import cli, export
from detops.cli.options import SHAPES_WEIGHTS
from detops.data import Shapes, load_image
from detops.engine import Detector
from detops.engine.checkpoint import load_checkpoint, save_checkpoint
from detops.engine.export import count_unmatched

PAGE = ROOT / "docs" / "export.md"
CMAKE = shutil.which("cmake") or shutil.which("cmake", path=Path(sys.executable).parent)
COMPILER = shutil.which(os.environ.get("CXX", "c++").split()[0])

for module in ("onnxscript", "onnxruntime", "skimage"):
    pytest.importorskip(module)
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree"),
    pytest.mark.skipif(CMAKE is None, reason="needs cmake: pip install cmake"),
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
    NEEDS_NO_SANITIZER,
]


def steps():
    """Yields the page's commands and blocks of Python in order."""
    pattern = r"```python\n([^`]*)```|(^ {4}\S.*\n(?: {8}.*\n)*)"
    for code, command in re.findall(pattern, PAGE.read_text(), re.M):
        yield ("python", code) if code else ("command", re.sub(r"^ {4}", "", command, flags=re.M))


def run(command, folder):
    """Runs a line of the shell with this Python and its packages."""
    names = {"python": sys.executable, "cmake": CMAKE}
    line = re.sub(r"^(python|cmake)\b", lambda m: names[m[1]], command)
    line = re.sub(r"\$\(python\b", f"$({sys.executable}", line)
    variables = environment()
    variables.pop("LD_LIBRARY_PATH", None)
    result = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert result.returncode == 0, (command, result.stdout, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Runs the page; returns its folder, the output of its commands and its Python names."""
    folder = tmp_path_factory.mktemp("page")
    # A graph that resizes images takes several times as long: tests/export/test_export.py has one.
    checkpoint = load_checkpoint(SHAPES_WEIGHTS)
    checkpoint["config"] = re.sub(r"MIN_SIZE_TEST: \d+", "MIN_SIZE_TEST: 0", checkpoint["config"])
    save_checkpoint(folder / "weights.pt", checkpoint)
    (folder / "examples").symlink_to(ROOT / "examples")
    scene = Shapes(length=15, size=(160, 240), objects=10, split="test", seed=2024)
    image = scene.image(14)
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / "photo.png")
    (folder / "photographs").mkdir()
    for i, shapes_image in enumerate(map(Shapes(length=12).image, range(12))):
        Image.fromarray(shapes_image.permute(1, 2, 0).numpy()).save(
            folder / "photographs" / f"{i}.png"
        )
    names, outputs = {"image": image.float() / 255}, {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for kind, text in steps():
            if kind == "python":
                exec(text, names)
            elif text.startswith("detops "):
                assert cli.main(shlex.split(text)[1:]) == 0, text
            elif not text.startswith("pip "):
                outputs[text.strip()] = run(text, folder)
    finally:
        os.chdir(before)
    return folder, outputs, names


@pytest.fixture(scope="module")
def expected(page):
    detector = Detector.from_checkpoint(page[0] / "weights.pt", device="cpu")
    return detector.detect(load_image(page[0] / "photo.png"))


def test_commands_of_the_page_write_their_files(page):
    commands = [text.split()[0] for kind, text in steps() if kind == "command"]
    assert commands == [
        "pip", *["detops"] * 7, "cmake", "cmake", "python", "build/detect"
    ]  # fmt: skip
    folder = page[0]
    files = ("detector.pt2", "detector.onnx", "int8.onnx", "compiled.pt2", "found.ppm")
    for file in (*files, "found/photo.png"):
        assert (folder / file).is_file(), file


def test_python_of_the_page_finds_what_the_checkpoint_finds(page, expected):
    names = page[2]
    assert names["found"].keys() == {"boxes", "labels", "scores", "masks"}
    for key in ("boxes", "scores"):
        torch.testing.assert_close(names["found"][key], expected[key], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(
        torch.from_numpy(names["boxes"]), expected["boxes"], rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize("file", ["detector.pt2", "detector.onnx", "compiled.pt2"])
def test_exported_files_find_what_the_checkpoint_finds(page, file):
    """Images may have any size, even for the compiled file; an image of NaN has no detections."""
    model = Detector.from_checkpoint(page[0] / "weights.pt", device="cpu")
    exported = Detector.from_exported(page[0] / file)
    assert exported.names == model.names and exported.tile_size == model.tile_size
    pixels = load_image(page[0] / "photo.png")
    for image in (pixels, pixels[:, 20:149, 10:], pixels[:, :, :131].transpose(1, 2)):
        found, reference = exported.detect(image), model.detect(image)
        assert len(reference["scores"]) > 0 and len(found["scores"]) == len(reference["scores"])
        assert count_unmatched(found, reference) == count_unmatched(reference, found) == 0
    blank = torch.full((3, 96, 128), torch.nan)
    for found in export.load(page[0] / file)([blank, blank.clone().requires_grad_()]):
        assert found["boxes"].shape == (0, 4) and found["masks"].shape == (0, 1, 96, 128)


def test_exported_detector_has_the_ap_of_the_checkpoint(page):
    """Compares the metrics of boxes and of masks."""
    arguments = ["eval", "--weights", str(page[0] / "weights.pt"), "--data", "shapes:test?length=8"]
    assert cli.main([*arguments, "--device", "cpu", "--output", str(page[0] / "wanted.json")]) == 0
    exported_metrics, checkpoint_metrics = (
        json.loads((page[0] / f"{n}.json").read_text()) for n in ("rated", "wanted")
    )
    for found, expected in (
        (exported_metrics, checkpoint_metrics),
        (exported_metrics["segm"], checkpoint_metrics["segm"]),
    ):
        assert expected["AP50"] > 0.5
        for key in ("AP", "AP50", "AR"):
            assert abs(found[key] - expected[key]) < 0.01, key


def test_cpp_program_finds_what_pytorch_finds(page, expected):
    """The program prints and draws the detections, and runs without Python."""
    folder, outputs, _ = page
    lines = [
        text.split()
        for text in outputs["build/detect compiled.pt2 photo.ppm found.ppm"].split("\n")
    ]
    printed = [line for line in lines if line]
    confident = expected["scores"] >= 0.5
    assert 0 < int(confident.sum()) == len(printed)
    assert [line[0] for line in printed] == [
        n for n, k in zip(expected["names"], confident, strict=True) if k
    ]
    numbers = torch.tensor([[float(word) for word in line[1:]] for line in printed])
    torch.testing.assert_close(numbers[:, 0], expected["scores"][confident], rtol=0, atol=1e-3)
    torch.testing.assert_close(numbers[:, 1:5], expected["boxes"][confident], rtol=0, atol=1e-1)
    areas = expected["masks"][confident].flatten(1).sum(1)
    assert ((numbers[:, 5] - areas).abs() <= 0.02 * areas + 2).all()
    before, after = (load_image(folder / f"{name}.ppm") for name in ("photo", "found"))
    x1, y1 = expected["boxes"][confident][0, :2].long().tolist()
    assert after[:, y1, x1].tolist() == [255, 220, 0] and before.shape == after.shape
    needed = run("ldd build/detect", folder)
    assert "libdetops.so" in needed and "libpython" not in needed


def test_cpp_program_rejects_invalid_input(page):
    folder = page[0]
    (folder / "broken.ppm").write_bytes(b"P6\n9 9\n255\nshort")
    for arguments, text in (
        (["compiled.pt2", "broken.ppm", "x.ppm"], "broken.ppm is truncated"),
        (["compiled.pt2", "photo.png", "x.ppm"], "photo.png: not an 8-bit PPM image"),
        (["none.pt2", "photo.ppm", "x.ppm"], "none.pt2"),
        ([], "usage: "),
    ):
        result = subprocess.run(
            [folder / "build" / "detect", *arguments], cwd=folder, capture_output=True
        )
        assert result.returncode == 2 and text in result.stderr.decode()
