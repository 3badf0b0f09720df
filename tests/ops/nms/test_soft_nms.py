import itertools
import math

import numpy as np
import pytest
import reference
import reference_decay
import reference_mmcv
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import detops
from detops.compat.mmcv_soft_nms import softnms

METHODS = ["linear", "gaussian", "naive"]
B, S = torch.rand(3, 4), torch.rand(3)


def crowd(rng, count, dtype=torch.float32):
    """Returns boxes around a few positions, so that each overlaps several; some scores tie."""
    places = rng.uniform(0, 200, (max(1, count // 8), 2))
    centre = places[rng.integers(0, len(places), count)] + rng.normal(0, 6, (count, 2))
    side = rng.uniform(10, 40, (count, 2))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], 1)
    scores = rng.random(count)
    if rng.random() < 0.5:
        boxes, scores = np.round(boxes), np.round(scores * 20) / 20
    return torch.from_numpy(boxes).to(dtype), torch.from_numpy(scores).to(dtype)


def expected(boxes, scores, *rest, dtype=np.float32):
    keep, kept = reference_decay.soft_nms(boxes.numpy(), scores.numpy(), *rest, dtype=dtype)
    return torch.from_numpy(keep), torch.from_numpy(kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["linear", "naive"])
def test_soft_nms_matches_reference_bit_for_bit(method, dtype, device, isa):
    rng = np.random.default_rng(0)
    numpy = np.float32 if dtype == torch.float32 else np.float64
    for count in (0, 1, 2, 17, 60, 150):
        for threshold, min_score in itertools.product((-0.5, 0.0, 0.3, 0.7, 1.5), (0.0, 1e-3, 0.5)):
            boxes, scores = crowd(rng, count, dtype)
            rest = (threshold, 0.5, min_score, method)
            for ours, theirs in zip(
                detops.soft_nms(boxes.to(device), scores.to(device), *rest),
                expected(boxes, scores, *rest, dtype=numpy),
                strict=True,
            ):
                assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [0.01, 0.5, 3.0, 1e-30, 1e30])
def test_gaussian_soft_nms_matches_reference(sigma, dtype, device, isa):
    rng = np.random.default_rng(1)
    rounding = 1e-5 if dtype == torch.float32 else 1e-12
    for count in (1, 17, 60):
        boxes, scores = crowd(rng, count, torch.float64)
        scores = torch.rand(count, dtype=dtype)  # distinct: rounding would break ties
        boxes = boxes.to(dtype)
        rest = (0.3, sigma, 1e-3, "gaussian")
        keep, kept = (t.cpu() for t in detops.soft_nms(boxes.to(device), scores.to(device), *rest))
        right, scores = expected(boxes, scores, *rest, dtype=np.float64)
        torch.testing.assert_close(kept.double(), scores, rtol=rounding, atol=rounding)
        assert (keep == right).double().mean() > 0.9  # rounding may swap near ties


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_instruction_set_gives_the_same_bits(method, dtype):
    before = detops._C.cpu_isa()
    rng = np.random.default_rng(2)
    for count in (100, 2000):
        boxes, scores = crowd(rng, count, dtype)
        results = []
        try:
            for isa in ("baseline", "avx2", "avx512"):
                try:
                    detops._C.set_cpu_isa(isa)
                except ValueError:
                    continue
                results.append(detops.soft_nms(boxes, scores, method=method))
        finally:
            detops._C.set_cpu_isa(before)
        for keep, kept in results:
            assert torch.equal(keep, results[0][0]) and torch.equal(kept, results[0][1])


@pytest.mark.parametrize("method", METHODS)
def test_soft_nms_on_device_matches_cpu(method, device):
    rng = np.random.default_rng(3)
    for count in (0, 1, 30, 2100):
        boxes, scores = crowd(rng, count)
        keep, kept = detops.soft_nms(boxes.to(device), scores.to(device), method=method)
        right, right_scores = detops.soft_nms(boxes, scores, method=method)
        assert torch.equal(keep.cpu(), right) and torch.equal(kept.cpu(), right_scores)
        assert kept.device.type == device


def test_naive_soft_nms_is_nms():
    rng = np.random.default_rng(4)
    for count in (10, 300):
        boxes, _ = crowd(rng, count)
        scores = torch.rand(count) + 0.1
        keep, kept = detops.soft_nms(boxes, scores, 0.5, method="naive")
        assert torch.equal(keep, detops.nms(boxes, scores, 0.5))
        assert torch.equal(kept, scores[keep])


def test_soft_nms_matches_hand_computed_scores(device):
    boxes = torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1], [8, 8, 9, 9], [1, 0, 3, 1]], device=device)
    scores = torch.tensor([0.9, 0.6, 0.5, 0.3], device=device)
    third = torch.tensor(1 / 3)

    def result(*args):
        keep, kept = detops.soft_nms(boxes, scores, *args)
        return keep.tolist(), pytest.approx(kept.tolist(), rel=1e-6)

    keep, kept = result(0.3)
    assert keep == [0, 2, 1]  # box 1 decays from 0.6 to 0.4, below box 2; box 3 decays to 0
    assert [0.9, 0.5, 0.6 * (1 - third)] == kept
    keep, kept = result(0.4)
    assert keep == [0, 1, 2] and [0.9, 0.6, 0.5] == kept
    keep, kept = result(0.3, 0.5, 1e-3, "gaussian")
    weight, twin = math.exp(-(third**2) / 0.5), math.exp(-2)
    assert keep == [0, 2, 1, 3] if 0.6 * weight < 0.5 else keep == [0, 1, 2, 3]
    assert sorted([0.9, 0.5, 0.6 * weight, 0.3 * weight * twin], reverse=True) == kept
    keep, kept = result(0.3, 0.5, 0.6)
    assert keep == [0] and [0.9] == kept


def test_soft_nms_selects_lowest_index_of_equal_scores(device, isa):
    boxes = torch.arange(40.0, device=device)[:, None] * 10 + torch.tensor(
        [0.0, 0, 5, 5], device=device
    )
    for method in METHODS:
        keep, _ = detops.soft_nms(boxes, torch.ones(40, device=device), method=method)
        assert keep.tolist() == list(range(40))


def test_malformed_boxes_are_kept_and_nan_scores_dropped(device, isa):
    boxes = reference.random_boxes(12).to(device)
    boxes[0, 0], boxes[1, 2], boxes[2] = math.nan, math.inf, torch.tensor([5.0, 5, 5, 5])
    boxes[3], boxes[4] = boxes[3, [2, 3, 0, 1]], torch.tensor([-1e30, -1e30, 1e30, 1e30])
    scores = torch.linspace(0.1, 0.9, 12, device=device)
    scores[5], scores[6], scores[7] = math.nan, math.inf, -math.inf
    for method in METHODS:
        for min_score in (1e-3, -math.inf):
            keep, kept = detops.soft_nms(boxes, scores, min_score=min_score, method=method)
            assert keep[0] == 6 and kept[0] == math.inf
            assert not {5, 7} & set(keep.tolist())
            assert {0, 1, 2, 3} <= set(keep.tolist())
            assert not kept.isnan().any() and (kept.diff() <= 0).all()
        keep, _ = detops.soft_nms(boxes, scores, min_score=math.inf, method=method)
        assert len(keep) == 0 or keep.tolist() == [6]


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 5), max_size=12),
    st.sampled_from([-0.1, 0.0, 0.3, 1.0, math.inf]),
    st.sampled_from(METHODS),
)
def test_any_floats_give_unique_indices_and_bounded_scores(rows, threshold, method):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    keep, kept = detops.soft_nms(table[:, :4], table[:, 4], threshold, method=method)
    assert len(keep.unique()) == len(keep)
    assert (kept >= 1e-3 * 0.999).all() and (kept <= table[keep, 4]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_are_computed_wide_and_rounded_to_their_dtype(dtype, device):
    boxes, scores = (t.to(device) for t in crowd(np.random.default_rng(5), 100))
    half = scores.to(dtype)
    keep, kept = detops.soft_nms(boxes, half)
    right, right_scores = detops.soft_nms(boxes, half.float())
    assert kept.dtype == dtype
    assert torch.equal(keep, right) and torch.equal(kept, right_scores.to(dtype))
    keep, kept = detops.soft_nms(boxes.double(), scores)
    right, right_scores = detops.soft_nms(boxes.double(), scores.double())
    assert kept.dtype == torch.float32
    assert torch.equal(keep, right) and torch.equal(kept, right_scores.float())


def test_soft_nms_keeps_input_and_accepts_strided_tensors(device):
    boxes, scores = (t.to(device) for t in crowd(np.random.default_rng(6), 100))
    before = scores.clone()
    expected = detops.soft_nms(boxes, scores)
    assert torch.equal(scores, before)
    strided = torch.stack([scores, scores], 1)[:, 0]
    for got, right in zip(
        detops.soft_nms(boxes.t().contiguous().t(), strided), expected, strict=True
    ):
        assert torch.equal(got, right)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.soft_nms(B[:, :3], S), r"boxes must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.soft_nms(B, S[:2]), "scores must be \\[3\\], got \\[2\\]"),
        (lambda: detops.soft_nms(B, S.long()), "scores must be float32.*got int64"),
        (lambda: detops.soft_nms(B, S, math.nan), "iou_threshold must be a number, got nan"),
        (lambda: detops.soft_nms(B, S, 0.3, 0.0), "sigma must be positive and finite, got 0"),
        (lambda: detops.soft_nms(B, S, 0.3, -1.0), "sigma must be positive and finite, got -1"),
        (lambda: detops.soft_nms(B, S, 0.3, math.nan), "sigma must be positive and finite"),
        (lambda: detops.soft_nms(B, S, min_score=math.nan), "min_score must be a number, got nan"),
        (
            lambda: detops.soft_nms(B, S, method="hard"),
            "method must be linear, gaussian or naive, got hard",
        ),
        (lambda: detops.soft_nms(B, S.to("meta")), "scores must be on the device of boxes"),
    ],
)
def test_soft_nms_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.soft_nms: {message}"):
        call()


def test_fake_tensors_raise_the_same_error():
    with torch._subclasses.FakeTensorMode():
        with pytest.raises(RuntimeError, match="detops.soft_nms: method must be"):
            detops.soft_nms(torch.empty(3, 4), torch.empty(3), method="hard")


@pytest.mark.slow
def test_soft_nms_passes_opcheck_compiles_and_autocasts():
    for method in METHODS:
        torch.library.opcheck(torch.ops.detops.soft_nms.default, (B, S, 0.3, 0.5, 1e-3, method))
    torch.library.opcheck(torch.ops.detops.soft_nms.default, (B, S))

    def call(boxes, scores):
        keep, kept = detops.soft_nms(boxes, scores, method="gaussian")
        return boxes[keep] * kept[:, None]

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 50):
        args = crowd(np.random.default_rng(7), count)
        assert torch.equal(compiled(*args), call(*args))
    boxes, scores = (t.bfloat16() for t in crowd(np.random.default_rng(8), 50))
    right, right_scores = detops.soft_nms(boxes.float(), scores.float())
    with torch.autocast("cpu", torch.bfloat16):
        keep, kept = detops.soft_nms(boxes, scores)
    assert torch.equal(keep, right) and torch.equal(kept, right_scores)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize(
    "odd", ["points", "inverted", "infinite", "NaN first", "NaN last", "all NaN"]
)
def test_mmcv_soft_nms_keeps_nan_scores(odd, method, ties):
    """Comparisons with NaN are false: a NaN score is neither below the minimum nor exceeded."""
    torch.manual_seed(0)
    boxes, scores = reference.random_boxes(12), torch.rand(12)
    if ties:
        scores = (scores * 3).round() / 3
    if odd == "points":
        boxes[3:6] = 5.0
    elif odd == "inverted":
        boxes[4] = boxes[4, [2, 1, 0, 3]]
    elif odd == "infinite":
        boxes[[2, 7], 2:] = torch.inf
    else:
        scores[{"NaN first": 0, "NaN last": 11, "all NaN": slice(None)}[odd]] = torch.nan
    dets = boxes.new_zeros(12, 5)
    number = ("naive", "linear", "gaussian").index(method)
    keep = softnms(boxes, scores, dets, 0.3, 0.5, 0.05, number, 0)
    with np.errstate(all="ignore"):
        expected, values = reference_mmcv.soft_nms(
            boxes.numpy(), scores.numpy(), 0.3, 0.5, 0.05, method
        )
    assert torch.equal(keep, expected)
    torch.testing.assert_close(dets[: len(keep), 4], values, equal_nan=True)
