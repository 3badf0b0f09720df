"""Detectors as PyTorch graphs, saved and loaded, and the command that writes and compares them."""

import subprocess
import sys

import pytest
import torch
from paths import environment
from PIL import Image
from small_detectors import (  # noqa: F401
    assert_same_detections,
    noise_images,
    single_steps,
    small_detector,
)

import detops
from detops import cli, export
from detops.cli.options import DEFAULT_WEIGHTS, TREE_CROWNS
from detops.contract import MAX_ELEMENTS
from detops.engine import Detector
from detops.engine import export as command
from detops.engine.detect import open_detector
from detops.export.load import Exported

pytestmark = pytest.mark.slow


# Runs in a separate process, which has only the file.
LOAD_AND_RUN = """
import sys, torch, detops, detops.export
image, file, found = sys.argv[1:]
with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
    torch.save(detops.export.load(file)([torch.load(image)]), found)
"""


def run_in_new_process(file, image, folder):
    torch.save(image, folder / "image.pt")
    files = [folder / "image.pt", file, folder / "found.pt"]
    subprocess.run(
        [sys.executable, "-c", LOAD_AND_RUN, *map(str, files)],
        check=True,
        cwd=folder,
        env=environment(),
    )
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize(
    ("name", "resized"),
    [
        ("mask_rcnn_R_50_C4_1x", True),
        ("torchvision_keypoint_rcnn_R_50_FPN", False),
        ("retinanet_R_50_FPN_1x", False),
    ],
)
@pytest.mark.exhaustive
@pytest.mark.usefixtures("single_steps")
def test_exported_detector_accepts_images_of_any_size(name, resized, tmp_path):
    size = ("INPUT.MIN_SIZE_TEST", 64 if resized else 0, "INPUT.MAX_SIZE_TEST", 96)
    model = small_detector(name, size)
    # PyTorch binds a graph to the strides of maps of one row: RetinaNet has a stride of 128.
    images = noise_images((160, 200), (200, 160), (129, 311), (131, 130), (160, 160))
    export.pt2(model, tmp_path / "detector.pt2", about={"names": "a\nb"})
    exported = export.load(tmp_path / "detector.pt2")
    assert exported.about == {"names": "a\nb"}
    (graph,) = exported._run
    operations = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    namespaces = {op.namespace for op in operations if hasattr(op, "namespace")}
    assert namespaces == {"aten", "detops"}  # C++ finds all of them without Python
    detectors = [exported]
    if resized:
        export.aoti(model, tmp_path / "compiled.pt2")
        detectors.append(export.load(tmp_path / "compiled.pt2"))
    for detector in detectors:
        for found, image in zip(detector(images), images, strict=True):
            (expected,) = model([image])
            assert (len(expected["boxes"]) == 0) == bool(image.isnan().all())
            assert_same_detections(found, expected)
    if name.startswith("torchvision_keypoint"):
        (found,) = run_in_new_process(tmp_path / "detector.pt2", images[1], tmp_path)
        assert_same_detections(found, model([images[1]])[0])


class NmsModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, images):
        boxes = images[0].flatten()[:40].view(10, 4) * self.scale
        keep = detops.nms(boxes, boxes[:, 0], 0.5)
        return [{"scores": boxes[keep, 0], "labels": keep, "boxes": boxes[keep], "more": keep}]


def test_data_dependent_sizes_are_bounded():
    """Inductor multiplies the bounds of sizes, and writes them as int64."""
    exported = export.program(NmsModel().eval(), size=(16, 16))
    bounds = [r.upper for s, r in exported.range_constraints.items() if str(s).startswith("u")]
    assert bounds and all(bound <= MAX_ELEMENTS for bound in bounds)


def test_boxes_labels_and_scores_are_the_first_outputs():
    exported = export.program(NmsModel().eval(), size=(16, 16))
    found = exported.module()(torch.rand(3, 16, 16))
    assert list(found) == ["boxes", "labels", "scores", "more"]


def test_invalid_exports_and_files_raise(tmp_path, monkeypatch):
    for write in (export.pt2, export.aoti):
        with pytest.raises(ValueError, match="file must end in .pt2, got x.pt"):
            write(NmsModel().eval(), "x.pt")
        with pytest.raises(ValueError, match="must be in eval mode"):
            write(NmsModel(), tmp_path / "x.pt2")
    with pytest.raises(ValueError, match=r"file must end in \.pt2 or \.onnx, got x\.pt"):
        export.load("x.pt")
    with pytest.raises(FileNotFoundError, match="no such file"):
        export.load(tmp_path / "x.pt2")
    (tmp_path / "x.pt2").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged"):
        export.load(tmp_path / "x.pt2")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="runs on the CPU, got c"):
        patch.setattr("detops.engine.detect.choose_device", torch.device)
        Detector.from_exported(tmp_path / "x.pt2", "cuda")
    export.pt2(NmsModel().eval(), tmp_path / "x.pt2", size=(16, 16))
    with pytest.raises(ValueError, match="no names of classes"):
        open_detector(tmp_path / "x.pt2")


class FindsTheFirstPixels(NmsModel):
    """Accepts images of ten rows or more."""

    def forward(self, images):
        boxes = images[0][0, :10, :4] * self.scale
        labels = torch.ones(10, dtype=torch.int64)
        return [{"boxes": boxes, "labels": labels, "scores": boxes[:, 0]}]


def test_run_continues_after_an_image_that_the_graph_rejects(tmp_path, capsys):
    file = tmp_path / "detector.pt2"
    # The graph is bound to this size.
    export.pt2(FindsTheFirstPixels().eval(), file, size=(20, 16), about={"names": "cat"})
    for name, size in (("a.png", (3, 2)), ("b.png", (16, 20))):
        Image.new("RGB", size).save(tmp_path / name)
    status = cli.main(
        ["detect", str(tmp_path), "--weights", str(file), "--output", str(tmp_path / "out")]
    )
    captured = capsys.readouterr()
    assert status == 1 and captured.out.startswith(f"{tmp_path / 'b.png'}: ")
    reason = "rejects an image of shape [3, 2, 3]: its graph does not support this size\n"
    assert f"detops: error: {tmp_path / 'a.png'}: the exported detector {reason}" in captured.err
    assert "error: 1 of 2 images failed" in captured.err and "Guard" not in captured.err


class RuntimeSpecificError(Exception):
    """An error like those of ONNX Runtime, which derive only from Exception."""


def test_runtime_errors_name_the_image():
    def fail(image):
        raise error

    exported = Exported(fail, {})
    error = RuntimeSpecificError("Resize failed.\nMore of it")
    with pytest.raises(RuntimeError, match=r"image of shape \[3, 8, 300\]: Resize failed\.$") as e:
        exported([torch.rand(3, 8, 300)])
    assert e.value.__cause__ is error
    for error in (RuntimeError("no memory"), MemoryError()):
        with pytest.raises(type(error)) as e:
            exported([torch.rand(3, 8, 300)])
        assert e.value is error


def found(boxes, scores=(0.9, 0.8), labels=(1, 1), **more):
    return {
        "boxes": torch.tensor(boxes), "scores": torch.tensor(scores), "labels": torch.tensor(labels)
    } | more  # fmt: skip


def test_count_unmatched_compares_all_fields_of_detections():
    two_boxes = [[0.0, 0, 40, 40], [50, 50, 90, 90]]
    masks = torch.zeros(2, 1, 99, 99, dtype=torch.bool)
    masks[0, :, 5:30, 5:30] = True
    points = torch.rand(2, 3, 3) * 40
    reference = found(two_boxes, masks=masks, keypoints=points)

    def count_unmatched(**other):
        return command.count_unmatched(
            reference, found(two_boxes, masks=masks, keypoints=points) | other
        )

    assert count_unmatched() == 0
    order = torch.tensor([1, 0])
    assert count_unmatched(**{key: value[order] for key, value in reference.items()}) == 0
    assert count_unmatched(boxes=torch.tensor(two_boxes) + torch.tensor([[0.1], [3]])) == 1
    assert count_unmatched(scores=torch.tensor([0.9, 0.7])) == 1
    assert count_unmatched(labels=torch.tensor([2, 1])) == 1
    assert count_unmatched(masks=masks.roll(3, dims=2)) == 1
    assert count_unmatched(keypoints=points + torch.tensor([[[0.0]], [[2.0]]])) == 1
    assert count_unmatched(**{key: value[:0] for key, value in reference.items()}) == 2
    empty = {key: value[:0] for key, value in reference.items()}
    assert command.count_unmatched(empty, reference) == 0


@pytest.fixture
def trees_image(tmp_path):
    """Writes a crop of a photograph, as large as a tile."""
    with Image.open(TREE_CROWNS / "val.jpg") as photograph:
        photograph.crop((0, 0, 230, 200)).save(tmp_path / "trees.png")
    return tmp_path / "trees.png"


def run(capsys, *arguments):
    status = cli.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_export_command_writes_a_file_and_rejects_bad_options(
    trees_image, tmp_path, capsys, monkeypatch
):
    file = tmp_path / "new" / "trees.pt2"
    arguments = ["export", "--format", "pt2", "--output", file, "--image", trees_image]
    status, out, err = run(capsys, *arguments, "--without-resizing")
    assert status == 0, err
    assert "the same" in out and str(file) in out
    status, out, _ = run(
        capsys, "detect", trees_image, "--weights", file, "--output", tmp_path / "o"
    )
    assert status == 0 and "found" in out

    monkeypatch.setitem(command.FORMATS, "pt2", lambda model, path, about: None)
    monkeypatch.setattr(command, "EXACT", command.EXACT._replace(iou=1.1))
    status, out, err = run(capsys, *arguments)
    assert status == 1 and out == ""
    assert (
        err.startswith(f"detops: error: {file}: detections in {trees_image} differ")
        and err.count("\n") == 1
    )
    for extra, text in (
        (["--format", "tflite"], "--format: expected pt2, onnx, aoti, got tflite"),
        (["--output", "x.onnx"], "format pt2 ends in .pt2, got x.onnx"),
        (["--image", tmp_path / "none.png"], "none.png"),
        (["--int8", trees_image], "--int8: requires --format onnx, got pt2"),
        (["--weights", tmp_path / "none.pt"], "no such checkpoint file"),
    ):
        status, _, err = run(capsys, *arguments, *extra)
        assert status == 2 and text in err and err.count("\n") == 1, err
    status, _, err = run(capsys, "detect", trees_image, "--weights", file, "--device", "nonsense")
    assert status == 2 and "nonsense" in err
    monkeypatch.setattr(Detector, "detect", lambda *_: {"scores": torch.zeros(0)})
    status, _, err = run(capsys, *arguments)
    assert status == 1 and "no detections to compare" in err


def test_shipped_weights_describe_their_detector():
    assert open_detector(DEFAULT_WEIGHTS, device="cpu").about == {
        "names": "tree", "tile_size": "160", "tile_overlap": "0.4", "tile_nms": "0.5"
    }  # fmt: skip
