"""Ops and detectors in ONNX: its runtimes give the results of PyTorch."""

import numpy as np
import pytest
import torch
from needs import NEEDS_NO_SANITIZER
from reference import random_boxes
from small_detectors import (  # noqa: F401
    assert_same_detections,
    noise_images,
    single_steps,
    small_detector,
)
from torch.export import Dim

import detops
from detops.cli.options import DEFAULT_WEIGHTS, TREE_CROWNS
from detops.data import load_image
from detops.engine import Detector

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
openvino = pytest.importorskip("openvino")

from detops.export import onnx  # noqa: E402
from detops.export.translations import translations  # noqa: E402

# OpenVINO loads its libraries in a way that sanitizers reject.
pytestmark = [pytest.mark.slow, NEEDS_NO_SANITIZER]


class OnnxRuntime:
    def __init__(self, file):
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def __call__(self, *inputs):
        names = [i.name for i in self.session.get_inputs()]
        found = self.session.run(None, dict(zip(names, inputs, strict=True)))
        names = [o.name for o in self.session.get_outputs()]
        return dict(zip(names, map(torch.from_numpy, found), strict=True))


class OpenVino:
    def __init__(self, file):
        # By default OpenVINO computes in bfloat16 on processors with AMX.
        in_float32 = {"INFERENCE_PRECISION_HINT": "f32"}
        self.model = openvino.compile_model(file, "CPU", in_float32)

    def __call__(self, *inputs):
        found = self.model(list(inputs))
        return {o.get_any_name(): torch.from_numpy(np.array(found[o])) for o in self.model.outputs}


RUNTIMES = [OnnxRuntime, OpenVino]


class FunctionModule(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def boxes(count, extent=200.0):
    return random_boxes(count, extent)


def rois(count, images=2):
    index = torch.arange(count).remainder(images).unsqueeze(1)
    return torch.cat([index.float(), boxes(count)], 1)


def rotated_rois(count):
    generator = torch.Generator().manual_seed(2)
    box = torch.rand(count, 5, generator=generator) * torch.tensor([260.0, 260, 80, 80, 360])
    index = torch.arange(count).remainder(2).unsqueeze(1)
    return torch.cat([index.float(), box - torch.tensor([20.0, 20, -1, -1, 180])], 1)


def malformed_boxes(count):
    """Returns boxes, some of them empty, inverted, NaN or infinite."""
    result = boxes(count)
    result[:4] = torch.tensor(
        [[5.0, 5, 5, 9], [9, 9, 3, 3], [torch.nan, 1, 5, 5], [1, 1, torch.inf, 5]]
    )
    return result


N, HW = {0: Dim.DYNAMIC}, {2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
SCORES = torch.linspace(0, 1, 200)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
MAP = torch.rand(2, 8, 40, 60, generator=torch.Generator().manual_seed(1))
PYRAMID = [torch.rand(2, 4, 80 >> i, 120 >> i) for i in range(3)]
WEIGHTS = [10.0, 10, 5, 5]
CASES = {
    "nms": (lambda b, s: detops.nms(b, s, 0.5), (boxes(200), SCORES), (N, N)),
    "nms, limited": (
        lambda b, s: detops.nms(b, s, 0.5, score_threshold=0.3, max_output=9),
        (boxes(200), SCORES),
        (N, N),
    ),
    "batched_nms, limited": (
        lambda b, s, i: detops.batched_nms(b, s, i, 0.5, score_threshold=0.3, max_output=9),
        (boxes(200), SCORES, torch.arange(200).remainder(7)),
        (N, N, N),
    ),
    "batched_nms": (
        lambda b, s, i: detops.batched_nms(b, s, i, 0.5),
        (boxes(200), SCORES, torch.arange(200).remainder(7) * 1000),
        (N, N, N),
    ),
    "roi_align": (lambda x, r: detops.roi_align(x, r, (7, 5), 0.2, 2), (MAP, rois(50)), (HW, N)),
    "roi_align, aligned and adaptive": (
        lambda x, r: detops.roi_align(x, r, (7, 5), 0.2, aligned=True),
        (MAP, rois(50)),
        (HW, N),
    ),
    "multiscale_roi_align": (
        lambda x, y, z, r: detops.multiscale_roi_align(
            [x, y, z], r, 7, [0.25, 0.125, 0.0625], 2, canonical_scale=64, canonical_level=3
        ),
        (*PYRAMID, rois(60)),
        (HW, HW, HW, N),
    ),
    "roi_align_rotated": (
        lambda x, r: detops.roi_align_rotated(x, r, (7, 5), 0.2, 2),
        (MAP, rotated_rois(60)),
        (HW, N),
    ),
    "encode_boxes": (
        lambda b, a: detops.encode_boxes(b, a, WEIGHTS), (boxes(40), boxes(40) + 1), (N, N)
    ),
    "decode_boxes": (
        lambda d, a: detops.decode_boxes(d, a, WEIGHTS), (torch.randn(40, 12), boxes(40)), (N, N)
    ),
    "paste_masks_in_image": (
        lambda m, b: detops.paste_masks_in_image(m, b, (150, 170)),
        (torch.rand(40, 1, 14, 20), malformed_boxes(40)),
        (N, N),
    ),
    "deform_conv2d": (
        lambda x, o, m, w: detops.deform_conv2d(x, o, w, None, 1, 1, 1, m),
        (MAP, torch.randn(2, 36, 40, 60), torch.rand(2, 18, 40, 60), torch.rand(8, 4, 3, 3)),
        (HW, HW, HW, None),
    ),
    "winograd_conv2d": (
        torch.ops.detops.winograd_conv2d, (MAP, torch.rand(4, 8, 3, 3), torch.rand(4)),
        (HW, None, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_op_in_onnx_gives_the_result_of_pytorch(name, tmp_path):
    function, inputs, dynamic = CASES[name]
    program = torch.export.export(FunctionModule(function), inputs, dynamic_shapes=(dynamic,))
    file = tmp_path / "op.onnx"
    torch.onnx.export(
        program, (), custom_translation_table=translations(), opset_version=20, verbose=False
    ).save(str(file))
    expected = function(*inputs)
    # OpenVINO does not read ONNX's DeformConv.
    for runtime in RUNTIMES[: 1 if name == "deform_conv2d" else 2]:
        (found,) = runtime(file)(*(x.numpy() for x in inputs)).values()
        assert found.shape == expected.shape
        if expected.is_floating_point():
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        else:
            assert (found != expected).sum() <= 1e-5 * expected.numel()


@pytest.mark.parametrize(
    "name",
    [
        "mask_rcnn_R_50_FPN_1x",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in (
                "mask_rcnn_R_50_C4_1x",
                "torchvision_keypoint_rcnn_R_50_FPN",
                "retinanet_R_50_FPN_1x",
            )
        ),
    ],
)
@pytest.mark.usefixtures("single_steps")
def test_detector_in_onnx_gives_the_result_of_pytorch(name, tmp_path):
    """One file handles images of any size."""
    model = small_detector(name, ("INPUT.MIN_SIZE_TEST", 0))
    onnx(model, tmp_path / "detector.onnx")
    *images, blank = noise_images((160, 200), (200, 160), (129, 311))
    for runtime in RUNTIMES:
        run = runtime(tmp_path / "detector.onnx")
        for image in images:
            (expected,) = model([image])
            assert len(expected["boxes"]) > 0
            assert_same_detections(run(image.numpy()), expected)
    run = OnnxRuntime(tmp_path / "detector.onnx")
    assert_same_detections(run(blank.numpy()), model([blank])[0])


@pytest.mark.exhaustive
def test_trained_detector_in_onnx_finds_the_same(tmp_path):
    """The file resizes images of any size."""
    model = Detector.from_checkpoint(DEFAULT_WEIGHTS, device="cpu").model
    onnx(model, tmp_path / "trees.onnx")
    photograph = load_image(TREE_CROWNS / "val.jpg").float() / 255
    sizes = ((400, 370), (190, 260), (260, 190))
    images = [photograph[:, :height, :width] for height, width in sizes]
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        expected = [model([image])[0] for image in images]
        (empty,) = model([torch.full((3, 160, 200), torch.nan)])
    for runtime in RUNTIMES:
        run = runtime(tmp_path / "trees.onnx")
        for image, detections in zip(images, expected, strict=True):
            assert (detections["scores"] > 0.5).sum() > 5
            assert_same_detections(run(image.numpy()), detections)
    blank = np.full((3, 160, 200), np.nan, np.float32)
    assert_same_detections(OnnxRuntime(tmp_path / "trees.onnx")(blank), empty)


class SoftNMS(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, images):
        found = images[0].flatten()[:40].view(10, 4) * self.scale
        keep, scores = detops.soft_nms(found, found[:, 0])
        return [{"boxes": found[keep], "scores": scores}]


def test_unsupported_onnx_exports_raise():
    with pytest.raises(NotImplementedError, match="soft_nms cannot be exported to ONNX"):
        onnx(SoftNMS().eval(), size=(16, 16))
    with pytest.raises(ValueError, match="eval mode"):
        onnx(SoftNMS())
    with pytest.raises(ValueError, match="opset_version must be at least 20, got 17"):
        onnx(SoftNMS().eval(), opset_version=17)
    with pytest.raises(ValueError, match="iou_threshold must be in"):
        translations()[torch.ops.detops.nms.default](
            np.zeros((1, 4), np.float32), np.zeros(1, np.float32), 1.5, None, None
        )
    with pytest.raises(ValueError, match="sampling_ratio must be at least 1"):
        translations()[torch.ops.detops.roi_align_rotated_forward.default](None, None, 1.0, 7, 7, 0)
