import itertools

import pytest
import reference
import torch
import torchvision
from torch._dynamo.testing import CompileCounter
from torch.autograd import gradcheck

import detops

UPRIGHT = ["xyxy", "xywh", "cxcywh"]
ROTATED = ["xywhr", "cxcywhr", "xyxyxyxy"]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def rotated_boxes(fmt):
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(30, 5, generator=generator, dtype=torch.double) * 50 + 1
    boxes[:, 4] = boxes[:, 4] * 7 - 179
    return torchvision.ops.box_convert(boxes, "xywhr", fmt) if fmt != "xywhr" else boxes


@pytest.mark.parametrize("in_fmt", UPRIGHT)
@pytest.mark.parametrize("out_fmt", UPRIGHT)
def test_upright_conversion_matches_torchvision(device, in_fmt, out_fmt):
    boxes = reference.random_boxes(30).to(device)
    boxes = torchvision.ops.box_convert(boxes, "xyxy", in_fmt)
    expected = torchvision.ops.box_convert(boxes, in_fmt, out_fmt)
    torch.testing.assert_close(detops.box_convert(boxes, in_fmt, out_fmt), expected)


@pytest.mark.parametrize("in_fmt", ROTATED)
@pytest.mark.parametrize("out_fmt", ROTATED)
def test_rotated_conversion_matches_torchvision(device, in_fmt, out_fmt):
    boxes = rotated_boxes(in_fmt).to(device)
    expected = torchvision.ops.box_convert(boxes, in_fmt, out_fmt)
    torch.testing.assert_close(detops.box_convert(boxes, in_fmt, out_fmt), expected)


def test_box_convert_is_differentiable_and_copies_its_input():
    boxes = reference.random_boxes(3, dtype=torch.double).requires_grad_()
    assert gradcheck(lambda b: detops.box_convert(b, "xyxy", "cxcywh"), (boxes,))
    assert detops.box_convert(boxes, "xyxy", "xyxy").data_ptr() != boxes.data_ptr()
    integers = torch.tensor([[10, 20, 30, 40, 90]])
    assert detops.box_convert(integers, "xywhr", "cxcywhr").dtype == torch.int64


@pytest.mark.parametrize("formats", [("xyxy", "xywhr"), ("xyxy", "yxyx"), ("", "xywh")])
def test_convert_rejects_unknown_formats(formats):
    with pytest.raises(ValueError, match="detops.box_convert: in_fmt and out_fmt must both be"):
        detops.box_convert(torch.rand(2, 4), *formats)


def test_box_area_matches_torchvision(device):
    boxes = reference.random_boxes(30).to(device)
    torch.testing.assert_close(detops.box_area(boxes), torchvision.ops.box_area(boxes))
    large = torch.tensor([[0.0, 0, 400, 400]], device=device).half()
    assert detops.box_area(large).tolist() == [160000]
    assert detops.box_area(torch.tensor([[1, 2, 4, 6]], device=device)).tolist() == [12]


@pytest.mark.parametrize("fmt", UPRIGHT)
def test_box_area_of_every_format_matches_torchvision(device, fmt):
    boxes = torchvision.ops.box_convert(reference.random_boxes(30), "xyxy", fmt).to(device)
    expected = torchvision.ops.box_area(boxes, fmt)
    torch.testing.assert_close(detops.box_area(boxes, fmt), expected)
    assert torch.equal(detops.box_area(boxes, fmt=fmt), detops.box_area(boxes, fmt))
    with pytest.raises(ValueError, match="detops.box_area: fmt must be xyxy, xywh or cxcywh"):
        detops.box_area(boxes, "xyxyxyxy")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_boxes_match_torchvision(device, dtype):
    side = min(300, torch.iinfo(dtype).max - 7)
    boxes = torch.tensor([[0, 0, side, side], [5, 7, side, side]], dtype=dtype, device=device)
    for fmt in UPRIGHT:
        area = detops.box_area(boxes, fmt)
        expected = torchvision.ops.box_area(boxes, fmt)
        assert area.dtype == expected.dtype and torch.equal(area, expected)
    wide = torch.promote_types(dtype, torch.int32)
    for formats in itertools.product(UPRIGHT, UPRIGHT):
        found = detops.box_convert(boxes, *formats)
        expected = torchvision.ops.box_convert(boxes.to(wide), *formats)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    clipped = detops.clip_boxes_to_image(boxes, (70000, 30))
    expected = torchvision.ops.clip_boxes_to_image(boxes.long(), (70000, 30)).to(dtype)
    assert torch.equal(clipped, expected) and clipped.dtype == dtype
    assert detops.remove_small_boxes(boxes, side - 5).tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_clip_accepts_image_size_beyond_half_precision(device, dtype):
    boxes = torch.tensor([[-5.0, 3, 60000, 40]], device=device).to(dtype)
    clipped = detops.clip_boxes_to_image(boxes, (30, 70000))
    assert torch.equal(clipped, boxes.new_tensor([[0, 3, 60000, 30]]))


def test_clip_matches_torchvision(device):
    boxes = (reference.random_boxes(30) - 40).to(device)
    expected = torchvision.ops.clip_boxes_to_image(boxes, (30, 20))
    assert torch.equal(detops.clip_boxes_to_image(boxes, (30, 20)), expected)
    stacked = boxes.view(5, 6, 4)
    assert torch.equal(detops.clip_boxes_to_image(stacked, (30, 20)).view(-1, 4), expected)
    leaf = boxes.double().requires_grad_()
    assert gradcheck(lambda b: detops.clip_boxes_to_image(b, (30, 20)), (leaf,))


def test_remove_small_boxes_matches_torchvision(device):
    boxes = (reference.random_boxes(60)).to(device)
    boxes[3, 0] = float("nan")
    for size in (0, 5.0, 20.0, 1e9):
        expected = torchvision.ops.remove_small_boxes(boxes, size)
        assert torch.equal(detops.remove_small_boxes(boxes, size), expected)


CALLS = {
    "box_area": detops.box_area,
    "box_convert": lambda b: detops.box_convert(b, "xyxy", "cxcywh"),
    "rotated": lambda b: detops.box_convert(
        detops.box_convert(torch.cat([b, b[:, :1]], 1), "xywhr", "xyxyxyxy"), "xyxyxyxy", "xywhr"
    ),
    "clip_boxes_to_image": lambda b: detops.clip_boxes_to_image(b, (50, 60)),
    "remove_small_boxes": lambda b: detops.remove_small_boxes(b, 5.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("after_nms", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_any_number_of_boxes_compiles_once(name, after_nms):
    def call(boxes, scores):
        if after_nms:
            boxes = boxes[detops.nms(boxes, scores, 0.5)]
        return CALLS[name](boxes)

    counter = CompileCounter()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
        for count in range(1, 11):
            arguments = reference.random_boxes(count), torch.rand(count)
            torch.testing.assert_close(compiled(*arguments), call(*arguments))
    assert counter.frame_count <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_exported_ops_accept_any_number_of_boxes(name):
    class Module(torch.nn.Module):
        def forward(self, boxes, scores):
            return CALLS[name](boxes), CALLS[name](boxes[detops.nms(boxes, scores, 0.5)])

    count = torch.export.Dim("count")
    arguments = reference.random_boxes(7), torch.rand(7)
    exported = torch.export.export(
        Module(), arguments, dynamic_shapes=({0: count}, {0: count})
    ).module()
    for other in (2, 30):
        arguments = reference.random_boxes(other), torch.rand(other)
        torch.testing.assert_close(exported(*arguments), Module()(*arguments))


@pytest.mark.slow
def test_compiled_box_ops_match_eager():
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
def test_box_ops_reject_bad_shapes(call):
    with pytest.raises(
        RuntimeError, match=r"detops\.\w+: boxes must be \[(\.\.\.|N), 4\], got \[2, 3\]"
    ):
        call(torch.rand(2, 3))
    assert call(torch.zeros(0, 4)).numel() == 0
