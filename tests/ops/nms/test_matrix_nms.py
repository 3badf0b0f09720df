import math

import numpy as np
import pytest
import reference
import reference_decay
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_soft_nms import crowd

import detops

METHODS = ["gaussian", "linear"]
B, S, L = torch.rand(3, 4), torch.rand(3), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", [None, 1, 4])
def test_matrix_nms_matches_reference(labels, method, dtype, device, isa, two_threads):
    rng = np.random.default_rng(0)
    rounding = 2e-5 if dtype == torch.float32 else 1e-12
    for count in (1, 2, 17, 60, 300, 700):
        for sigma in (0.5, 2.0, 20.0):
            boxes, scores = crowd(rng, count, dtype)
            # Distinct scores, because rounding would break ties.
            scores = (torch.randperm(count) + 1).to(dtype) / count
            idxs = None if labels is None else torch.from_numpy(rng.integers(0, labels, count))
            for min_score in (-1.0, 0.05):
                moved = [None if t is None else t.to(device) for t in (boxes, scores, idxs)]
                args = (*moved, sigma, min_score, method)
                one, two = two_threads(lambda: [t.cpu() for t in detops.matrix_nms(*args)])  # noqa: B023
                assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
                keep, kept = reference_decay.matrix_nms(
                    boxes.double().numpy(),
                    scores.double().numpy(),
                    np.zeros(count) if idxs is None else idxs.numpy(),
                    sigma,
                    min_score,
                    method,
                )
                near = abs(len(keep) - len(one[0]))
                assert near <= (count > 100)  # a score at min_score may round either way
                if near == 0:
                    kept = torch.from_numpy(kept)
                    torch.testing.assert_close(one[1].double(), kept, rtol=rounding, atol=rounding)
                    assert (one[0].numpy() == keep).mean() > 0.9  # rounding may swap near ties


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_isa_and_thread_count_give_the_same_bits(method, dtype, two_threads):
    before = detops._C.cpu_isa()
    rng = np.random.default_rng(2)
    for count, labels in ((100, 1), (2000, 1), (9000, 2), (3000, 80)):
        boxes, scores = crowd(rng, count, dtype)
        idxs = torch.from_numpy((rng.random(count) ** 3 * labels).astype("int64"))
        results = []
        try:
            for isa in ("baseline", "avx2", "avx512"):
                try:
                    detops._C.set_cpu_isa(isa)
                except ValueError:
                    continue
                results += two_threads(
                    lambda: detops.matrix_nms(boxes, scores, idxs, method=method)  # noqa: B023
                )
        finally:
            detops._C.set_cpu_isa(before)
        for keep, kept in results:
            assert torch.equal(keep, results[0][0]) and torch.equal(kept, results[0][1])


@pytest.mark.parametrize("method", METHODS)
def test_matrix_nms_on_device_matches_cpu(method, device):
    rng = np.random.default_rng(3)
    for count in (0, 1, 30, 3000):
        boxes, scores = crowd(rng, count)
        idxs = torch.from_numpy(rng.integers(-2, 2, count))
        for labels in (None, idxs):
            moved = None if labels is None else labels.to(device)
            keep, kept = detops.matrix_nms(
                boxes.to(device), scores.to(device), moved, method=method
            )
            right, right_scores = detops.matrix_nms(boxes, scores, labels, method=method)
            assert torch.equal(keep.cpu(), right) and torch.equal(kept.cpu(), right_scores)
            assert kept.device.type == device


def test_matrix_nms_matches_hand_computed_scores(device):
    # IoU is 1/3 between neighbours of this row and 0 otherwise.
    boxes = torch.tensor(
        [[0.0, 0, 2, 1], [1, 0, 3, 1], [2, 0, 4, 1], [9, 9, 10, 10]], device=device
    )
    scores = torch.tensor([0.9, 0.8, 0.7, 0.1], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, method="linear")
    # Box 1 leaves box 2 unchanged, because box 0 decays box 1 equally: (1 - 1/3) / (1 - 1/3).
    assert keep.tolist() == [0, 2, 1, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.7, 0.8 * 2 / 3, 0.1], rel=1e-6)
    keep, kept = detops.matrix_nms(boxes, scores, sigma=3.0)
    assert keep.tolist() == [0, 2, 1, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.7, 0.8 * math.exp(-3 / 9), 0.1], rel=1e-6)
    labels = torch.tensor([5, 6, 5, 5], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, labels)
    assert keep.tolist() == [0, 1, 2, 3] and torch.equal(kept, scores)


def test_only_first_of_equal_boxes_decays_others(device):
    """The ratio between the other equal boxes is 0/0 and decays no score."""
    boxes = torch.tensor([[0.0, 0, 2, 1]] * 4 + [[1.0, 0, 3, 1]], device=device)
    scores = torch.tensor([0.9, 0.8, 0.8, 0.7, 0.6], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, min_score=0.0, method="linear")
    assert keep.tolist() == [0, 4, 1, 2, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.4, 0, 0, 0], rel=1e-6)
    keep, kept = detops.matrix_nms(boxes, scores)
    assert kept[1:].tolist() == pytest.approx(
        [0.6 * math.exp(-2 / 9), *(s * math.exp(-2) for s in (0.8, 0.8, 0.7))], rel=1e-6
    )


def test_malformed_boxes_are_kept_and_nan_scores_dropped(device, isa):
    boxes = reference.random_boxes(12).to(device)
    boxes[0, 0], boxes[1, 2], boxes[2] = math.nan, math.inf, torch.tensor([5.0, 5, 5, 5])
    boxes[3] = boxes[3, [2, 3, 0, 1]]
    scores = torch.linspace(0.1, 0.9, 12, device=device)
    for method in METHODS:
        expected = detops.matrix_nms(boxes[:11], scores[:11], method=method)
        # The box that covers all others scores NaN, so every other score stays.
        boxes[11], scores[11] = torch.tensor([-100.0, -100, 200, 200]), math.nan
        for got, right in zip(
            detops.matrix_nms(boxes, scores, method=method), expected, strict=True
        ):
            assert torch.equal(got, right)
        assert {0, 1, 2, 3} <= set(expected[0].tolist())
        low = scores.clone()
        low[4], low[5] = -math.inf, -0.5
        keep, kept = detops.matrix_nms(boxes, low, min_score=-math.inf, method=method)
        assert not {4, 11} & set(keep.tolist()) and 5 in keep.tolist()
        assert (kept.diff() <= 0).all()


@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 5), max_size=12),
    st.sampled_from(METHODS),
    st.sampled_from([1e-30, 2.0, 1e300]),
)
def test_any_floats_give_unique_indices_and_sorted_scores(rows, method, sigma):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    keep, kept = detops.matrix_nms(table[:, :4], table[:, 4], None, sigma, method=method)
    assert len(keep.unique()) == len(keep)
    assert (kept >= 1e-3 * 0.999).all() and (kept <= table[keep, 4]).all()
    assert (kept[1:] <= kept[:-1]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_are_computed_wide_and_rounded_to_their_dtype(dtype, device):
    boxes, scores = (t.to(device) for t in crowd(np.random.default_rng(5), 100))
    half = scores.to(dtype)
    keep, kept = detops.matrix_nms(boxes, half)
    right, right_scores = detops.matrix_nms(boxes, half.float())
    assert kept.dtype == dtype
    assert torch.equal(keep, right) and torch.equal(kept, right_scores.to(dtype))
    keep, kept = detops.matrix_nms(boxes.double(), scores)
    right, right_scores = detops.matrix_nms(boxes.double(), scores.double())
    assert kept.dtype == torch.float32
    assert torch.equal(keep, right) and torch.equal(kept, right_scores.float())


def test_matrix_nms_accepts_strided_tensors(device):
    boxes, scores = (t.to(device) for t in crowd(np.random.default_rng(6), 100))
    strided = torch.stack([scores, scores], 1)[:, 0]
    for got, right in zip(
        detops.matrix_nms(boxes.t().contiguous().t(), strided),
        detops.matrix_nms(boxes, scores),
        strict=True,
    ):
        assert torch.equal(got, right)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.matrix_nms(B[:, :3], S), r"boxes must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.matrix_nms(B, S[:2]), "scores must be \\[3\\], got \\[2\\]"),
        (lambda: detops.matrix_nms(B, S, S), "idxs must be integers or bool, got float32"),
        (lambda: detops.matrix_nms(B, S, L[:2]), "idxs must be \\[3\\], got \\[2\\]"),
        (lambda: detops.matrix_nms(B, S, L, 0.0), "sigma must be positive and finite, got 0"),
        (lambda: detops.matrix_nms(B, S, L, math.inf), "sigma must be positive and finite"),
        (lambda: detops.matrix_nms(B, S, min_score=math.nan), "min_score must be a number, got"),
        (
            lambda: detops.matrix_nms(B, S, method="naive"),
            "method must be linear or gaussian, got naive",
        ),
        (lambda: detops.matrix_nms(B, S.to("meta")), "scores must be on the device of boxes"),
    ],
)
def test_matrix_nms_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.matrix_nms: {message}"):
        call()


@pytest.mark.slow
def test_matrix_nms_passes_opcheck_compiles_and_autocasts():
    torch.library.opcheck(torch.ops.detops.matrix_nms.default, (B, S))
    torch.library.opcheck(torch.ops.detops.matrix_nms.default, (B, S, L, 2.0, 1e-3, "linear"))

    def call(boxes, scores, labels):
        keep, kept = detops.matrix_nms(boxes, scores, labels)
        return boxes[keep] * kept[:, None]

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 50):
        boxes, scores = crowd(np.random.default_rng(7), count)
        labels = torch.randint(0, 3, (count,))
        assert torch.equal(compiled(boxes, scores, labels), call(boxes, scores, labels))
    boxes, scores = (t.bfloat16() for t in crowd(np.random.default_rng(8), 50))
    right, right_scores = detops.matrix_nms(boxes.float(), scores.float())
    with torch.autocast("cpu", torch.bfloat16):
        keep, kept = detops.matrix_nms(boxes, scores)
    assert torch.equal(keep, right) and torch.equal(kept, right_scores)
