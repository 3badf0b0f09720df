"""The extension module of detectron2, called as its Python code calls it."""

import importlib
import sys

import pytest
import reference
import reference_rotated
import torch
from reference_deform_conv2d import deform_conv2d
from reference_mmcv import roi_align_rotated

from detops.compat import provide

# Calls as in the package, rewritten: layers/deform_conv.py and the wrappers of the ops.
LAYERS = """
import torch
from detectron2 import _C


def nms_rotated(boxes, scores, iou_threshold):
    return torch.ops.detectron2.nms_rotated(boxes, scores, iou_threshold)


def forward(x, offset, weight, stride, pad, dilation, groups, offset_groups):
    out = x.new_empty(x.size(0), weight.size(0), *offset.shape[2:])
    spare = x.new_empty(0), x.new_empty(0)
    _C.deform_conv_forward(
        x, weight, offset, out, *spare, weight.size(3), weight.size(2), stride, stride, pad, pad,
        dilation, dilation, groups, offset_groups, x.size(0),
    )
    return out


def backward(x, offset, weight, grad, stride, pad, dilation, groups, offset_groups):
    rest = (weight.size(3), weight.size(2), stride, stride, pad, pad, dilation, dilation, groups,
            offset_groups)
    grads = [torch.zeros_like(t) for t in (x, offset, weight)]
    spare = x.new_empty(0), x.new_empty(0)
    _C.deform_conv_backward_input(x, offset, grad, *grads[:2], weight, spare[0], *rest, x.size(0))
    _C.deform_conv_backward_filter(x, offset, grad, grads[2], *spare, *rest, 1, x.size(0))
    return grads
"""


@pytest.fixture
def layers(tmp_path, monkeypatch):
    """Imports the Python code of detectron2 without its extension module."""
    (tmp_path / "detectron2").mkdir()
    (tmp_path / "detectron2" / "__init__.py").write_text("")
    (tmp_path / "detectron2" / "layers.py").write_text(LAYERS)
    imported = [n for n in sys.modules if n.split(".")[0] == "detectron2"]
    for name in imported:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with provide("detectron2"):
        yield importlib.import_module("detectron2.layers")
    for name in [n for n in sys.modules if n.split(".")[0] == "detectron2"]:
        del sys.modules[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nms_rotated_suppresses_at_the_threshold(layers, dtype):
    boxes = torch.tensor([[20.0, 20, 10, 10, 0], [20, 20, 10, 5, 0], [50, 50, 4, 4, 1]]).to(dtype)
    scores = torch.tensor([0.5, 0.9, 0.7], dtype=dtype)
    assert layers.nms_rotated(boxes, scores, 0.5).tolist() == [1, 2]  # an IoU of 0.5
    assert layers.nms_rotated(boxes, scores, 0.5000001).tolist() == [1, 2, 0]
    assert layers.nms_rotated(boxes[:0], scores[:0], 0.5).shape == (0,)
    generator = torch.Generator().manual_seed(0)
    boxes = reference_rotated.random_boxes(generator, 60, dtype)
    scores = torch.rand(60, generator=generator).to(dtype)
    overlaps = reference_rotated.box_iou_rotated(boxes, boxes)
    expected = reference.nms_from_overlaps(scores, overlaps, 0.3)
    assert torch.equal(layers.nms_rotated(boxes, scores, 0.3), expected)


def test_angle_is_in_degrees_and_counter_clockwise(layers):
    rotated = torch.tensor([[20.0, 20, 20, 1, 45]])
    up_right, down_right = (torch.tensor([[26.0, y, 1, 1, 0]]) for y in (14, 26))
    op = torch.ops.detectron2.box_iou_rotated
    assert op(rotated, up_right) > 0 and op(rotated, down_right) == 0


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_rotated_matches_the_reference(layers, sampling_ratio):
    x = torch.randn(2, 2, 10, 12)
    rois = torch.tensor([[0.0, 9, 8, 12, 6, 40], [1, 20, 4, 9, 15, -143]])
    radians = torch.cat([rois[:, :5], rois[:, 5:].deg2rad()], 1)
    expected = roi_align_rotated(x, radians, (3, 2), 0.5, sampling_ratio, True, False)
    ours = torch.ops.detectron2.roi_align_rotated_forward(x, rois, 0.5, 3, 2, sampling_ratio)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(ours)
    to_x = torch.ops.detectron2.roi_align_rotated_backward(
        grad, rois, 0.5, 3, 2, *x.shape, sampling_ratio
    )
    # The op is linear in the feature map.
    torch.testing.assert_close((to_x * x).sum(), (grad * ours).sum(), rtol=1e-4, atol=1e-4)


def test_ops_have_the_schemas_of_detectron2(layers):
    for name, arguments in (
        ("nms_rotated", 3),
        ("box_iou_rotated", 2),
        ("roi_align_rotated_forward", 6),
        ("roi_align_rotated_backward", 10),
    ):
        schema = getattr(torch.ops.detectron2, name).default._schema
        assert len(schema.arguments) == arguments and len(schema.returns) == 1


def test_deform_conv_matches_the_reference(layers):
    x, weight = torch.randn(2, 4, 7, 8), torch.randn(6, 2, 3, 3)
    offset = torch.randn(2, 36, 4, 4)
    inputs = [t.clone().requires_grad_() for t in (x, offset, weight)]
    expected = deform_conv2d(*inputs, None, (2, 2), (1, 1), (1, 1), edge_gradient=False)
    window = (2, 1, 1, 2, 2)
    ours = layers.forward(x, offset, weight, *window)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(ours)
    expected.backward(grad)
    for ours_grad, t in zip(layers.backward(x, offset, weight, grad, *window), inputs, strict=True):
        torch.testing.assert_close(ours_grad, t.grad, rtol=1e-4, atol=1e-4)


def test_version_functions_are_provided(layers):
    assert layers._C.get_compiler_version().startswith("detops ")
    assert isinstance(layers._C.get_cuda_version(), str)
    assert isinstance(layers._C.has_cuda(), bool)
