import math

import pytest
import reference
import torch
from torch.autograd import gradcheck
from torchvision.models.detection._utils import BoxCoder as TorchvisionBoxCoder

import detops

WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def pair(count, dtype=torch.float32):
    return reference.random_boxes(count, dtype=dtype), reference.random_boxes(count, dtype=dtype)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), WEIGHTS])
def test_encode_and_decode_match_torchvision(device, weights):
    boxes, anchors = (b.to(device) for b in pair(50))
    theirs = TorchvisionBoxCoder(weights)
    deltas = detops.encode_boxes(boxes, anchors, weights)
    torch.testing.assert_close(deltas, theirs.encode_single(boxes, anchors))
    for k in (1, 3):
        many = torch.randn(50, 4 * k, device=device)
        expected = theirs.decode_single(many, anchors)
        torch.testing.assert_close(detops.decode_boxes(many, anchors, weights), expected)


def test_decode_inverts_encode(device):
    boxes, anchors = (b.to(device) for b in pair(50))
    coder = detops.BoxCoder(WEIGHTS)
    torch.testing.assert_close(coder.decode(coder.encode(boxes, anchors), anchors), boxes)


def test_decode_clips_box_growth(device):
    anchors = torch.tensor([[0.0, 0, 10, 10]], device=device)
    deltas = torch.tensor([[0.0, 0, 100, -100]], device=device)
    x1, y1, x2, y2 = detops.decode_boxes(deltas, anchors).flatten().tolist()
    assert x2 - x1 == pytest.approx(10 * 1000 / 16) and y2 - y1 == pytest.approx(0)
    x1, _, x2, _ = detops.decode_boxes(deltas, anchors, clip=0.0).flatten().tolist()
    assert x2 - x1 == pytest.approx(10)


def test_encode_and_decode_pass_gradcheck(device):
    boxes, anchors = (b.to(device).requires_grad_() for b in pair(6, torch.double))
    assert gradcheck(lambda b, a: detops.encode_boxes(b, a, WEIGHTS), (boxes, anchors))
    deltas = torch.randn(6, 8, dtype=torch.double, device=device, requires_grad=True)
    assert gradcheck(lambda d, a: detops.decode_boxes(d, a, WEIGHTS, 0.05), (deltas, anchors))


def test_box_coder_promotes_mixed_dtypes(device):
    boxes, anchors = (b.to(device) for b in pair(20))
    for dtype in (torch.float16, torch.bfloat16):
        deltas = detops.encode_boxes(boxes, anchors).to(dtype)
        assert detops.decode_boxes(deltas, anchors.to(dtype)).dtype == dtype
        mixed = detops.decode_boxes(deltas, anchors)
        assert mixed.dtype == torch.float32
        assert torch.equal(mixed, detops.decode_boxes(deltas.float(), anchors))
        leaf = deltas.clone().requires_grad_()
        detops.decode_boxes(leaf, anchors).sum().backward()
        assert leaf.grad.dtype == dtype


def test_nonfinite_deltas_give_defined_boxes(device):
    anchors = reference.random_boxes(4).to(device)
    deltas = torch.zeros(4, 4, device=device)
    deltas[0, 0], deltas[1, 2], deltas[2, 3] = math.nan, math.inf, -math.inf
    boxes = detops.decode_boxes(deltas, anchors)
    assert boxes[0, 0].isnan() and boxes[0, 1].isfinite()
    assert boxes[1:].isfinite().all()
    torch.testing.assert_close(boxes[3], anchors[3])


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    _, anchors = pair(20_000)
    deltas = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
    first, second = two_threads(lambda: detops.decode_boxes(deltas, anchors))
    assert torch.equal(first, second)


def test_box_coder_accepts_empty_and_strided_tensors(device):
    empty = torch.zeros(0, 4, device=device, requires_grad=True)
    assert detops.encode_boxes(empty, empty).shape == (0, 4)
    decoded = detops.decode_boxes(torch.zeros(0, 12, device=device), empty)
    assert decoded.shape == (0, 12)
    decoded.sum().backward()
    boxes, anchors = (b.to(device) for b in pair(9))
    strided = boxes.t().contiguous().t()
    assert torch.equal(detops.encode_boxes(strided, anchors), detops.encode_boxes(boxes, anchors))


@pytest.mark.slow
def test_box_coder_passes_opcheck_compiles_and_vmaps():
    boxes, anchors = pair(5)
    weights = list(WEIGHTS)
    deltas, grad = torch.randn(5, 8), torch.randn(5, 8)
    for op, args in {
        "encode_boxes_forward": (boxes, anchors, weights),
        "encode_boxes_backward": (grad[:, :4], boxes, anchors, weights),
        "decode_boxes_forward": (deltas, anchors, weights, 4.0),
        "decode_boxes_backward": (grad, deltas, anchors, weights, 4.0),
    }.items():
        torch.library.opcheck(getattr(torch.ops.detops, op).default, args)

    def call(deltas, anchors):
        return detops.decode_boxes(deltas, anchors, WEIGHTS).square().sum()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    leaf = deltas.clone().requires_grad_()
    (ours,) = torch.autograd.grad(compiled(leaf, anchors), leaf)
    (expected,) = torch.autograd.grad(call(leaf, anchors), leaf)
    torch.testing.assert_close(ours, expected)
    stacked = torch.stack([deltas, 2 * deltas])
    batched = torch.vmap(detops.decode_boxes, in_dims=(0, None))(stacked, anchors)
    torch.testing.assert_close(batched[1], detops.decode_boxes(2 * deltas, anchors))


B, D = torch.rand(3, 4), torch.rand(3, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.encode_boxes(B[:, :3], B), r"encode_boxes: boxes must be \[N, 4\]"),
        (
            lambda: detops.encode_boxes(B, B[:2]),
            "encode_boxes: anchors must be \\[3, 4\\], got \\[2, 4\\]",
        ),
        (lambda: detops.encode_boxes(B, B, (1, 1, 1)), "encode_boxes: weights must be 4 numbers"),
        (lambda: detops.encode_boxes(B, B, (1, 1, 0, 1)), "encode_boxes: weights must be positive"),
        (lambda: detops.decode_boxes(D[:, :6], B), r"decode_boxes: deltas must be \[N, 4k\]"),
        (lambda: detops.decode_boxes(D, D), r"decode_boxes: anchors must be \[3, 4\]"),
        (lambda: detops.decode_boxes(D.long(), B), "decode_boxes: deltas must be float32"),
        (lambda: detops.decode_boxes(D, B, clip=math.nan), "decode_boxes: clip must be a number"),
    ],
)
def test_box_coder_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.{message}"):
        call()
