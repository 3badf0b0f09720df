import pytest
import reference
import torch
import torchvision
from torch.autograd import gradcheck

import detops

UPRIGHT = ["xyxy", "xywh", "cxcywh"]
ROTATED = ["xywhr", "cxcywhr", "xyxyxyxy"]


def rotated_boxes(fmt):
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(30, 5, generator=generator, dtype=torch.double) * 50 + 1
    boxes[:, 4] = boxes[:, 4] * 7 - 179
    return torchvision.ops.box_convert(boxes, "xywhr", fmt) if fmt != "xywhr" else boxes


@pytest.mark.parametrize("in_fmt", UPRIGHT)
@pytest.mark.parametrize("out_fmt", UPRIGHT)
def test_convert_upright(device, in_fmt, out_fmt):
    boxes = reference.random_boxes(30).to(device)
    boxes = torchvision.ops.box_convert(boxes, "xyxy", in_fmt)
    expected = torchvision.ops.box_convert(boxes, in_fmt, out_fmt)
    torch.testing.assert_close(detops.box_convert(boxes, in_fmt, out_fmt), expected)


@pytest.mark.parametrize("in_fmt", ROTATED)
@pytest.mark.parametrize("out_fmt", ROTATED)
def test_convert_rotated(device, in_fmt, out_fmt):
    boxes = rotated_boxes(in_fmt).to(device)
    expected = torchvision.ops.box_convert(boxes, in_fmt, out_fmt)
    torch.testing.assert_close(detops.box_convert(boxes, in_fmt, out_fmt), expected)


def test_convert_is_differentiable_and_leaves_its_input_alone():
    boxes = reference.random_boxes(3, dtype=torch.double).requires_grad_()
    assert gradcheck(lambda b: detops.box_convert(b, "xyxy", "cxcywh"), (boxes,))
    assert detops.box_convert(boxes, "xyxy", "xyxy").data_ptr() != boxes.data_ptr()
    whole = torch.tensor([[10, 20, 30, 40, 90]])
    assert detops.box_convert(whole, "xywhr", "cxcywhr").dtype == torch.int64


@pytest.mark.parametrize("formats", [("xyxy", "xywhr"), ("xyxy", "yxyx"), ("", "xywh")])
def test_convert_refuses_unknown_formats(formats):
    with pytest.raises(ValueError, match="detops.box_convert: in_fmt and out_fmt must both be"):
        detops.box_convert(torch.rand(2, 4), *formats)


def test_area(device):
    boxes = reference.random_boxes(30).to(device)
    torch.testing.assert_close(detops.box_area(boxes), torchvision.ops.box_area(boxes))
    large = torch.tensor([[0.0, 0, 400, 400]], device=device).half()
    assert detops.box_area(large).tolist() == [160000]
    assert detops.box_area(torch.tensor([[1, 2, 4, 6]], device=device)).tolist() == [12]


def test_clip(device):
    boxes = (reference.random_boxes(30) - 40).to(device)
    expected = torchvision.ops.clip_boxes_to_image(boxes, (30, 20))
    assert torch.equal(detops.clip_boxes_to_image(boxes, (30, 20)), expected)
    stacked = boxes.view(5, 6, 4)
    assert torch.equal(detops.clip_boxes_to_image(stacked, (30, 20)).view(-1, 4), expected)
    leaf = boxes.double().requires_grad_()
    assert gradcheck(lambda b: detops.clip_boxes_to_image(b, (30, 20)), (leaf,))


def test_remove_small(device):
    boxes = (reference.random_boxes(60)).to(device)
    boxes[3, 0] = float("nan")
    for size in (0, 5.0, 20.0, 1e9):
        expected = torchvision.ops.remove_small_boxes(boxes, size)
        assert torch.equal(detops.remove_small_boxes(boxes, size), expected)


def test_compile():
    def call(boxes):
        clipped = detops.clip_boxes_to_image(boxes, (50, 60))
        return detops.box_area(detops.box_convert(clipped, "xyxy", "cxcywh"))

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 8):
        boxes = reference.random_boxes(count)
        torch.testing.assert_close(compiled(boxes), call(boxes))


@pytest.mark.parametrize(
    "call",
    [
        lambda b: detops.box_area(b),
        lambda b: detops.box_convert(b, "xyxy", "xywh"),
        lambda b: detops.clip_boxes_to_image(b, (5, 5)),
        lambda b: detops.remove_small_boxes(b, 1),
    ],
)
def test_bad_shapes(call):
    with pytest.raises(RuntimeError, match=r"detops\.\w+: boxes must be \[N, 4\], got \[2, 3\]"):
        call(torch.rand(2, 3))
    assert call(torch.zeros(0, 4)).numel() == 0
