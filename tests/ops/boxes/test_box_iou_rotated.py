import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rotated import KINDS, box_iou_rotated, random_boxes

import detops

OCTAGON = 2 * (math.sqrt(2) - 1)  # overlap of a unit square and itself rotated by 45 degrees


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_box_iou_rotated_matches_reference(kind, dtype, device, isa):
    for n, m in ((1, 1), (3, 19), (40, 33)):
        a = random_boxes(generator(n), n, dtype, kind)
        b = random_boxes(generator(n), n + m, dtype, kind)[n:]  # the same objects
        expected = box_iou_rotated(a, b)
        rounding = 1e-7 if dtype == torch.float32 else 1e-12
        iou = detops.box_iou_rotated(a.to(device), b.to(device)).cpu()
        assert iou.dtype == dtype
        torch.testing.assert_close(iou.double(), expected, rtol=rounding, atol=rounding)
        if kind != "thin" and n == 40:
            assert (expected > 0).any() and (expected == 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_modes_and_aligned_pairs_match_reference(kind, dtype, device, isa):
    a = random_boxes(generator(20), 37, dtype, kind)
    b = random_boxes(generator(20), 74, dtype, kind)[37:]
    for mode in ("iou", "iof"):
        expected = box_iou_rotated(a, b, mode)
        rounding = 1e-7 if dtype == torch.float32 else 1e-12
        table = detops.box_iou_rotated(a.to(device), b.to(device), mode=mode)
        torch.testing.assert_close(table.cpu().double(), expected, rtol=rounding, atol=rounding)
        for n in (1, 3, 8, 37):
            x, y = a[:n].to(device), b[:n].to(device)
            pairs = detops.box_iou_rotated(x, y, mode=mode, aligned=True)
            assert torch.equal(pairs, table[:n, :n].diagonal())
    shaped = [x[:36].to(device).view(3, 12, 5) for x in (a, b)]
    pairs = detops.box_iou_rotated(*shaped, mode="iof", aligned=True)
    assert torch.equal(pairs.flatten(), table[:36, :36].diagonal())
    strided = [x.mT.contiguous().mT for x in shaped]
    assert torch.equal(detops.box_iou_rotated(*strided, mode="iof", aligned=True), pairs)
    with pytest.raises(RuntimeError, match=r"boxes2 must be \[3, 12, 5\], got \[2, 12, 5\]"):
        detops.box_iou_rotated(shaped[0], shaped[1][:2], aligned=True)


def test_iof_divides_by_area_of_first_box(device):
    whole = torch.tensor([[10.0, 10, 8, 4, 30]], device=device)
    part = torch.tensor([[10.0, 10, 4, 2, 30]], device=device)
    for aligned in (False, True):
        of = partial(detops.box_iou_rotated, mode="iof", aligned=aligned)
        assert of(part, whole).item() == 1
        assert of(whole, part).item() == pytest.approx(0.25)
        for box in ([10.0, 10, 0, 4, 0], [math.nan, 1, 1, 1, 1], [1, 1, math.inf, 1, 0]):
            odd = torch.tensor([box], device=device)
            assert of(odd, whole).item() == 0 and of(whole, odd).item() == 0
        assert of(whole[:0], part[:0]).shape == ((0,) if aligned else (0, 0))


def test_any_number_of_threads_gives_the_same_pairs(two_threads):
    a, b = random_boxes(generator(3), 5000), random_boxes(generator(4), 5000)
    one, two = two_threads(lambda: detops.box_iou_rotated(a, b, aligned=True))
    assert torch.equal(one, two)
    assert detops.box_iou_rotated(a.half(), b, aligned=True).dtype == torch.float32


def test_box_iou_rotated_on_device_matches_cpu(device):
    for kind in KINDS:
        a, b = random_boxes(generator(1), 50, kind=kind), random_boxes(generator(2), 70, kind=kind)
        iou = detops.box_iou_rotated(a.to(device), b.to(device))
        assert torch.equal(iou.cpu(), detops.box_iou_rotated(a, b))


def test_every_isa_thread_count_and_order_give_the_same_bits(two_threads):
    before = detops._C.cpu_isa()
    for kind in KINDS:
        for dtype in (torch.float32, torch.float64):
            a = random_boxes(generator(3), 150, dtype, kind)
            b = random_boxes(generator(3), 350, dtype, kind)[100:]
            one, two = two_threads(lambda: detops.box_iou_rotated(a, b))  # noqa: B023
            assert torch.equal(one, two)
            assert torch.equal(detops.box_iou_rotated(b, a).t(), one)
            try:
                for isa in ("baseline", "avx2"):
                    try:
                        detops._C.set_cpu_isa(isa)
                    except ValueError:
                        continue
                    assert torch.equal(detops.box_iou_rotated(a, b), one)
            finally:
                detops._C.set_cpu_isa(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_box_iou_rotated_matches_known_values(dtype, device):
    def iou(a, b):
        a, b = (torch.tensor([x], dtype=dtype, device=device) for x in (a, b))
        return detops.box_iou_rotated(a, b).item()

    close = {"rel": 1e-7 if dtype == torch.float32 else 1e-14}
    assert iou([5, 6, 1, 1, 0], [5, 6, 1, 1, 45]) == pytest.approx(OCTAGON / (2 - OCTAGON), **close)
    # Counter-clockwise with y pointing down: 30 degrees lift the far end of w to smaller y.
    along = [20 * math.cos(math.pi / 6), -20 * math.sin(math.pi / 6)]
    assert iou([0, 0, 60, 2, 30], [*along, 4, 1, 30]) == pytest.approx(4 / 120, rel=1e-6)
    assert iou([0, 0, 60, 2, -30], [*along, 4, 1, -30]) == 0
    # Side by side, corner to corner, one within the other, and a cross.
    assert iou([0, 0, 10, 10, 0], [10, 0, 10, 10, 0]) == 0
    assert iou([0, 0, 10, 10, 90], [10, 10, 10, 10, -180]) == 0
    assert iou([0, 0, 10, 10, 0], [1, 2, 2, 4, 0]) == pytest.approx(8 / 100, **close)
    assert iou([0, 0, 10, 2, 0], [0, 0, 10, 2, 90]) == pytest.approx(4 / 36, **close)
    assert iou([0, 0, 10, 10, 0], [5, 0, 10, 10, 0]) == pytest.approx(1 / 3, **close)


@pytest.mark.parametrize("offset", [0, 5e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iou_of_box_with_itself_is_one(dtype, offset, device):
    sides = [[180.64, 136.36, 54.77], [900, 3, 33.3], [3, 900, -71], [1e-3, 1e-3, 10], [1, 1e6, 5]]
    boxes = torch.tensor([[offset, -offset, *s] for s in sides], dtype=dtype, device=device)
    ones = detops.box_iou_rotated(boxes, boxes).diagonal()
    torch.testing.assert_close(ones, torch.ones_like(ones), rtol=0, atol=1e-7)
    # The same box, rotated by 180 degrees or with its sides swapped.
    for turned in (
        boxes + torch.tensor([0, 0, 0, 0, 180], dtype=dtype, device=device),
        boxes[:, [0, 1, 3, 2, 4]] + torch.tensor([0, 0, 0, 0, 90], dtype=dtype, device=device),
    ):
        ones = detops.box_iou_rotated(boxes, turned).diagonal()
        torch.testing.assert_close(ones[:4], torch.ones_like(ones[:4]), rtol=0, atol=1e-3)


def test_translation_and_rotation_keep_iou():
    a, b = random_boxes(generator(4), 60, torch.float64), random_boxes(generator(5), 60)
    a, b = a.round(decimals=2), b.double().round(decimals=2)
    expected = detops.box_iou_rotated(a, b)
    shift = torch.tensor([5e5, -5e5, 0, 0, 0], dtype=torch.float64)
    moved = detops.box_iou_rotated(a + shift, b + shift)
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)
    for quarters in range(1, 5):
        # Rotates the image by 90 degrees at a time: (x, y) to (y, -x).
        a, b = (torch.stack([x[:, 1], -x[:, 0], x[:, 2], x[:, 3], x[:, 4] + 90], 1) for x in (a, b))
        turned = detops.box_iou_rotated(a, b)
        torch.testing.assert_close(turned, expected, rtol=1e-12, atol=1e-12)
        full = detops.box_iou_rotated(a, b + torch.tensor([0.0, 0, 0, 0, 360]))
        torch.testing.assert_close(full, turned, rtol=1e-12, atol=1e-12), quarters


def test_upright_boxes_match_box_iou():
    boxes = random_boxes(generator(6), 80, torch.float64)
    boxes[:, 4] = 0
    upright = detops.box_convert(boxes[:, :4], "cxcywh", "xyxy")
    torch.testing.assert_close(
        detops.box_iou_rotated(boxes, boxes), detops.box_iou(upright, upright)
    )


def test_degenerate_boxes_have_zero_iou(device):
    odd = torch.tensor(
        [
            [5.0, 5, 0, 10, 0],
            [5, 5, 10, 0, 30],
            [5, 5, -10, 10, 0],
            [5, 5, -10, -10, 0],
            [5, 5, 0, 0, 0],
            [math.nan, 5, 10, 10, 0],
            [5, 5, math.nan, 10, 0],
            [5, 5, 10, 10, math.nan],
            [5, 5, 10, 10, math.inf],
            [math.inf, 5, 10, 10, 0],
            [5, 5, math.inf, 10, 0],
            [-math.inf, 5, 10, math.inf, 0],
        ],
        device=device,
    )
    plain = torch.tensor([[5.0, 5, 10, 10, 0], [5, 5, 1e30, 1e30, 20]], device=device)
    for dtype in (torch.float32, torch.float64):
        iou = detops.box_iou_rotated(
            torch.cat([odd, plain]).to(dtype), torch.cat([odd, plain]).to(dtype)
        )
        assert (iou[: len(odd)] == 0).all() and (iou[:, : len(odd)] == 0).all()
        torch.testing.assert_close(iou[-1, -1].item(), 1.0)
        assert 0 < iou[-1, -2].item() < 1e-57 or iou[-1, -2] == 0


NUMBERS = st.floats(width=32) | st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1, 10, 45])


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.tuples(*[NUMBERS] * 5), min_size=1, max_size=20))
def test_any_floats_give_symmetric_iou_from_zero_to_one(rows):
    boxes = torch.tensor(rows, dtype=torch.float32)
    for x in (boxes, boxes.double()):
        iou = detops.box_iou_rotated(x, x)
        assert ((iou >= 0) & (iou <= 1)).all()
        assert torch.equal(iou, iou.t())
        assert torch.equal(iou[:, :1], detops.box_iou_rotated(x, x[:1]))
    valid = boxes.isfinite().all(1) & (boxes[:, 2:4] > 1e-15).all(1)
    assert (iou.diagonal()[valid] > 0.999).all()


@settings(max_examples=300)
@given(*[st.tuples(*[st.floats(-20, 20)] * 2, *[st.floats(0.1, 30)] * 2, st.floats(-400, 400))] * 2)
def test_any_pair_matches_reference(a, b):
    a, b = (torch.tensor([x], dtype=torch.float64) for x in (a, b))
    ours, expected = detops.box_iou_rotated(a, b), box_iou_rotated(a, b)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_filter_passes_boxes_beyond_float32_range(isa):
    """Areas and distances leave the range of float32."""
    for scale in (1e-30, 1e-20, 1e-10, 1e15, 1e25, 1e35):
        boxes = random_boxes(generator(7), 40, torch.float64)
        expected = detops.box_iou_rotated(boxes, boxes)
        boxes[:, :4] *= scale
        scaled = detops.box_iou_rotated(boxes, boxes)
        torch.testing.assert_close(scaled, expected, rtol=1e-12, atol=1e-12)


def test_box_iou_rotated_promotes_dtypes(device):
    a = random_boxes(generator(8), 30).to(device)
    for dtype in (torch.float16, torch.bfloat16):
        half = a.to(dtype)
        iou = detops.box_iou_rotated(half, half)
        assert iou.dtype == torch.float32
        assert torch.equal(iou, detops.box_iou_rotated(half.float(), half.float()))
    assert detops.box_iou_rotated(a, a.double()).dtype == torch.float64
    assert detops.box_iou_rotated(a.half(), a.double()).dtype == torch.float64


def test_box_iou_rotated_accepts_strided_and_empty_tensors(device):
    a = random_boxes(generator(9), 20).to(device)
    strided = a.t().contiguous().t()
    expected = detops.box_iou_rotated(a, a[::2].contiguous())
    assert torch.equal(detops.box_iou_rotated(strided, a[::2]), expected)
    empty = torch.zeros(0, 5, device=device)
    assert detops.box_iou_rotated(empty, a).shape == (0, 20)
    assert detops.box_iou_rotated(a, empty).shape == (20, 0)


@pytest.mark.slow
def test_op_passes_opcheck_compiles_and_autocasts():
    a, b = random_boxes(generator(10), 4), random_boxes(generator(11), 6)
    torch.library.opcheck(torch.ops.detops.box_iou_rotated.default, (a, b))
    torch.library.opcheck(torch.ops.detops.box_iou_rotated.default, (a, b, "iof"))
    torch.library.opcheck(torch.ops.detops.rotated_iou_forward.default, (a, b[:4], "iof"))
    compiled = torch.compile(
        detops.box_iou_rotated, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n in (3, 6):
        assert torch.equal(compiled(a[:n], b), detops.box_iou_rotated(a[:n], b))
    half = a.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(
            detops.box_iou_rotated(half, half), detops.box_iou_rotated(half.float(), half.float())
        )


def test_backward_of_box_iou_rotated_raises():
    a = random_boxes(generator(12), 4).requires_grad_()
    with pytest.raises(RuntimeError, match="derivative for detops::box_iou_rotated"):
        detops.box_iou_rotated(a, a).sum().backward()


B = torch.rand(3, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.box_iou_rotated(B[:, :4], B), r"boxes1 must be \[N, 5\], got \[3, 4\]"),
        (lambda: detops.box_iou_rotated(B, B[0]), r"boxes2 must be \[M, 5\], got \[5\]"),
        (lambda: detops.box_iou_rotated(B, B.long()), "boxes2 must be float32.*got int64"),
        (lambda: detops.box_iou_rotated(B, B, mode="giou"), "mode must be iou or iof, got giou"),
        (lambda: detops.box_iou_rotated(B, B.to("meta")), "boxes2 must be on the device of boxes1"),
    ],
)
def test_box_iou_rotated_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.box_iou_rotated: {message}"):
        call()
