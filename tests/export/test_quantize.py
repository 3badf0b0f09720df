"""Detectors in 8 bits: their accuracy compared with float32, and rejected inputs."""

import json
import shutil

import pytest
import torch

from detops import cli, export
from detops.cli.options import TREE_CROWNS
from detops.data.shapes import Shapes
from detops.engine import export as command
from detops.engine.detect import open_detector

for module in ("onnxscript", "onnxruntime", "skimage"):
    pytest.importorskip(module)
pytestmark = pytest.mark.slow

TREES, SHAPES = (TREE_CROWNS.parent / name / "weights.pt" for name in ("tree_crowns", "shapes"))


def run(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def quantized_layers(file):
    """Maps the names of weights in a file to whether their products run in 8 bits."""
    import onnx

    graph = onnx.load(file).graph
    producers = {out: node for node in graph.node for out in node.output}
    names = {}
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            source = producers.get(node.input[1])
            weight = node.input[1] if source is None else source.input[0]
            names[weight] = source is not None and source.op_type == "DequantizeLinear"
    return names


def ap50(capsys, tmp_path, weights, data):
    file = tmp_path / "metrics.json"
    status, _, err = run(capsys, "eval", "--weights", weights, "--data", data, "--output", file)
    assert status == 0, err
    metrics = json.loads(file.read_text())
    return [metrics["AP50"]] + ([metrics["segm"]["AP50"]] if "segm" in metrics else [])


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Exports a detector in float32; returns its file and images for it."""
    file = tmp_path_factory.mktemp("shapes") / "shapes.onnx"
    detector = open_detector(SHAPES, device="cpu")
    export.onnx(detector.model, file, about=detector.about)
    return file, [image.float() / 255 for image in map(Shapes(length=24).image, range(24))]


@pytest.mark.exhaustive
def test_int8_command_keeps_the_ap_of_trees(tmp_path, capsys, monkeypatch):
    """The photograph for the command is cut into tiles."""
    file = tmp_path / "new" / "int8.onnx"
    arguments = ("export", "--format", "onnx", "--int8", TREE_CROWNS / "train.jpg", "--output")
    status, out, err = run(capsys, *arguments, file)
    assert status == 0 and "of 70 detections" in out, err
    is_quantized = quantized_layers(file)
    float_layers = [name for name, is_in_8_bits in is_quantized.items() if not is_in_8_bits]
    assert all(
        any(name_part in name for name_part in ("stem", "cls_", "bbox_pred"))
        for name in float_layers
    )
    assert 5 <= len(float_layers) < len(is_quantized) / 2
    val = TREE_CROWNS / "val.json"
    found, expected = (ap50(capsys, tmp_path, weights, val) for weights in (file, TREES))
    assert expected[0] > 0.5 and abs(found[0] - expected[0]) <= 0.01

    # Lost detections are reported.
    monkeypatch.setattr(export, "onnx", lambda *_, **__: None)
    monkeypatch.setattr(export, "quantize", lambda _, other, __: shutil.copy(file, other))
    monkeypatch.setattr(command, "ROUNDED", command.ROUNDED._replace(iou=1.1))
    status, _, err = run(capsys, *arguments, tmp_path / "x.onnx")
    assert status == 1 and "misses 70 of 70 detections" in err and "use other --int8 images" in err


@pytest.mark.exhaustive
def test_quantized_detector_keeps_the_ap_of_shapes(shapes, tmp_path, capsys):
    """Quantizes from Python; an image without objects does not change the result."""
    source, images = shapes
    file = tmp_path / "int8.onnx"
    export.quantize(source, file, [*images, torch.full((3, 64, 96), torch.nan)])
    data = "shapes:test?length=40"
    found, expected = (ap50(capsys, tmp_path, weights, data) for weights in (file, source))
    assert min(expected) > 0.85
    assert all(abs(one - other) <= 0.01 for one, other in zip(found, expected, strict=True))


class BrightPixelDetector(torch.nn.Module):
    """Finds a box where the first pixels are bright, and nothing in an image of NaN."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, images):
        boxes = images[0].flatten()[:40].view(10, 4) * self.scale
        keep = torch.where(boxes[:, 0] > 0)[0]
        return [{"boxes": boxes[keep], "labels": keep, "scores": boxes[keep, 0]}]


def test_invalid_quantization_raises(tmp_path, capsys):
    source, images = tmp_path / "bright.onnx", [torch.rand(3, 64, 96)]
    export.onnx(BrightPixelDetector().eval(), source)
    with pytest.raises(ValueError, match=r"quantize: file must end in \.onnx, got x\.pt2"):
        export.quantize(source, "x.pt2", images)
    for empty in ([], [torch.full((3, 64, 96), torch.nan)]):
        with pytest.raises(ValueError, match="images must contain detections, got none"):
            export.quantize(source, tmp_path / "x.onnx", empty)
    (tmp_path / "empty").mkdir()
    for path, text in (
        (tmp_path / "none", "no such file or folder"),
        (tmp_path / "empty", "no files in it"),
    ):
        arguments = ("export", "--format", "onnx", "--output", tmp_path / "x.onnx", "--int8", path)
        status, _, err = run(capsys, *arguments)
        assert status == 2 and text in err and err.count("\n") == 1, err
    assert not (tmp_path / "x.onnx").exists()
