"""Every suppression op with any input; suppression.py explains the files `cases_<op>.py`."""

import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from contracts import load_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from suppression import Detections, Suppression, as_tuple, each_case, inputs, same

import detops

WIDE = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)
FOLDER = Path(__file__).parent


def test_exceptions_name_a_contract_test_and_a_reason():
    files = (path.read_text("utf-8") for path in FOLDER.glob("test_suppression_contract*.py"))
    tests = set(re.findall(r"^def (test_\w+)", "".join(files), re.MULTILINE))
    for case in load_cases(Suppression):
        assert set(case.exceptions) <= tests and all(case.exceptions.values()), case.name


def assert_matches(case, found, expected, description):
    """Compares with the oracle: the same bits, or each box's score within the tolerance."""
    found = [t.cpu() for t in found]
    if not case.tolerance:
        assert same(found, expected), description
        return
    if case.rescores:  # rounding may swap boxes with close scores
        assert (found[1][1:] <= found[1][:-1]).all(), description
        found, expected = ([t[r[0].argsort()] for t in r] for r in (found, expected))
    for one, other in zip(found, expected, strict=True):
        bound = case.tolerance.get(one.dtype, 0)
        torch.testing.assert_close(
            one,
            other.to(one.dtype),
            rtol=bound,
            atol=bound,
            msg=lambda text: f"{description}: {text}",
        )


@cache
def expected(case, dtype):
    """Returns the random inputs, each with thresholds, options and results of the oracle."""
    return [
        (
            description,
            detections,
            threshold,
            options,
            as_tuple(case.oracle(*detections, threshold, **options)),
        )
        for description, detections in inputs(case.boxes, dtype)
        for threshold in case.boxes.thresholds
        for options in case.options
    ]


@each_case()
@pytest.mark.parametrize("dtype", WIDE)
def test_results_match_the_oracle(case, dtype, device, isa, two_threads, poison):
    for description, detections, threshold, options, expected_outputs in expected(case, dtype):
        on_device = detections.to(dtype, device)
        description = f"{description}, threshold {threshold}, {options}"
        for found in two_threads(lambda: case.outputs(on_device, threshold, **options)):  # noqa: B023
            assert_matches(case, found, expected_outputs, description)


def any_input(data, boxes):
    """Draws up to 12 boxes and scores of any float32 values; masks of any pixels."""
    size = boxes.pair_with_iou_third.shape[1:]
    element = (
        st.booleans() if boxes.pair_with_iou_third.dtype == torch.bool else st.floats(width=32)
    )
    box = st.lists(element, min_size=size.numel(), max_size=size.numel())
    rows = data.draw(st.lists(st.tuples(box, st.floats(width=32), st.integers(0, 1)), max_size=12))
    values, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    drawn_boxes = torch.tensor(values, dtype=boxes.pair_with_iou_third.dtype).view(-1, *size)
    return Detections(drawn_boxes, torch.tensor(scores), torch.tensor(labels, dtype=torch.int64))


@each_case(lambda case: not case.tolerance)
@settings(max_examples=60)
@given(data=st.data())
def test_any_floats_match_the_oracle(case, data):
    detections = any_input(data, case.boxes)
    threshold = data.draw(st.sampled_from(case.boxes.thresholds))
    assert same(case.outputs(detections, threshold), as_tuple(case.oracle(*detections, threshold)))


def score_ranks(scores):
    """Returns the scores as finite numbers of the same order, NaN first."""
    return scores.double().cpu().nan_to_num(math.nan, 1e300, -1e300).nan_to_num(math.inf)


@each_case(lambda case: case.tolerance or "test_any_floats_match_the_oracle" in case.exceptions)
@settings(max_examples=60)
@given(data=st.data())
def test_any_floats_keep_each_box_at_most_once_in_order(case, data):
    detections = any_input(data, case.boxes)
    found = case.outputs(detections, data.draw(st.sampled_from(case.boxes.thresholds)))
    keep = case.kept(*found)
    assert len(keep.unique()) == len(keep)
    scores = detections.scores[keep]
    if case.rescores:
        assert (found[1] >= case.min_score * 0.999).all() and (found[1] <= scores).all()
        scores = found[1]
    ranked = score_ranks(scores)
    assert (ranked[1:] <= ranked[:-1]).all()


@each_case()
def test_first_of_equal_scores_is_kept(case, device, isa):
    one, other = case.boxes.disjoint(2)
    boxes = torch.stack([one, one, one, other, other])
    keep = case.keep(
        Detections(boxes, torch.ones(5), torch.zeros(5).long()).to(WIDE[0], device), 0.5
    )
    assert keep[:2].tolist() == [0, 3]
    assert len(keep) == 2 or case.rescores
    ties = Detections(case.boxes.disjoint(300), torch.ones(300), torch.zeros(300).long())
    assert case.keep(ties.to(WIDE[0], device), 0.5).tolist() == list(range(300))


@each_case()
@pytest.mark.parametrize("dtype", [*WIDE, *HALF])
def test_kept_boxes_are_ordered_by_score_with_nan_first(case, dtype, device):
    for count in (60, case.parallel_count):  # a GPU ranks few scores and sorts many
        scores = torch.rand(count).to(dtype)
        scores[3::9], scores[4::9] = math.inf, -math.inf
        scores[5::9] = -scores[5::9]
        scores[6::9], scores[7::9] = 0.0, -0.0
        scores[::4] = math.nan
        bits = scores.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[scores.element_size()])
        bits[::8] |= torch.iinfo(bits.dtype).min
        bits[4::8] &= torch.iinfo(bits.dtype).max
        assert scores[::4].isnan().all() and 0 < scores[::4].signbit().sum() < count // 4
        order = score_ranks(scores).sort(stable=True, descending=True).indices
        if case.rescores:
            order = order[scores[order] >= case.min_score]
        detections = Detections(case.boxes.disjoint(count), scores, torch.zeros(count).long())
        boxes, scores, labels = (t.to(device) for t in detections)
        for strided in (scores, torch.stack([scores, scores], 1)[:, 0]):
            assert torch.equal(case.keep(Detections(boxes, strided, labels), 0.5).cpu(), order)


@each_case()
def test_malformed_boxes_neither_suppress_nor_are_suppressed(case, device, isa):
    malformed = case.boxes.malformed
    valid = case.sample(60, "distinct")
    valid = valid._replace(scores=valid.scores / 2 + 0.25)
    above, below = (
        Detections(malformed, torch.full((len(malformed),), s), torch.zeros(len(malformed)).long())
        for s in (0.9, 0.1)
    )
    detections = Detections(*(torch.cat(parts) for parts in zip(above, valid, below, strict=True)))
    for threshold in (0.01, 0.3):
        alone = case.outputs(valid, threshold)
        found = case.outputs(detections.to(WIDE[0], device), threshold)
        keep, expected_keep = case.kept(*found).cpu(), case.kept(*alone) + len(malformed)
        assert 0 < len(expected_keep) < 60 or case.rescores
        malformed_indices = [
            *range(len(malformed)),
            *range(len(malformed) + 60, 2 * len(malformed) + 60),
        ]
        assert sorted(keep.tolist()) == sorted([*malformed_indices, *expected_keep.tolist()])
        if case.rescores:
            scores_by_index = dict(zip(keep.tolist(), found[1].tolist(), strict=True))
            assert [scores_by_index[i] for i in expected_keep.tolist()] == alone[1].tolist()


@each_case()
@pytest.mark.parametrize("dtype", WIDE)
def test_only_overlap_above_the_threshold_suppresses(case, dtype, device, isa):
    scores, labels = torch.tensor([1.0, 0.5]), torch.zeros(2).long()
    pair = Detections(case.boxes.pair_with_iou_third, scores, labels).to(dtype, device)
    iou = torch.ones((), dtype=case.boxes.rounding or dtype).div(3).item()
    for threshold, suppresses in ((math.nextafter(iou, 0), True), (iou, False)):
        found = case.outputs(pair, threshold)
        lowered = case.rescores and found[1].min() < 0.5
        assert (len(case.kept(*found)) < 2 or lowered) == suppresses


@each_case()
@pytest.mark.parametrize("dtype", [*WIDE, *HALF])
def test_empty_input_gives_empty_result(case, dtype, device, poison):
    detections = case.sample(3).to(dtype, device)
    found, other = case.outputs(detections.rows(slice(0, 0)), 0.5), case.outputs(detections, 0.5)
    assert len(case.kept(*found)) == 0
    for empty, nonempty in zip(found, other, strict=True):
        assert empty.dtype == nonempty.dtype and empty.device.type == device
        assert empty.shape == (0, *nonempty.shape[1:]) or (empty.dim() == 0 and empty == 0)


@each_case(lambda case: case.separates_labels)
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
def test_boxes_of_different_labels_do_not_suppress_each_other(case, dtype, device):
    info = None if dtype == torch.bool else torch.iinfo(dtype)
    low, high = (info.min, info.max) if info else (False, True)
    boxes = case.boxes.disjoint(1).expand(5, *case.boxes.pair_with_iou_third.shape[1:])
    labels = torch.tensor([high, low, high, low, high], dtype=dtype)
    detections = Detections(boxes, torch.tensor([0.5, 0.9, 0.8, 0.7, 0.6]), labels)
    keep = case.keep(Detections(*(t.to(device) for t in detections)), 0.5)
    assert keep[:2].tolist() == [1, 2]
    assert len(keep) == 2 or case.rescores


@each_case(lambda case: case.limits)
@pytest.mark.parametrize("dtype", [*WIDE, torch.float16])
def test_limits_filter_by_score_then_truncate(case, dtype, device, isa):
    # Soft-NMS takes milliseconds per box on an emulated GPU.
    counts = (0, 1, 40) if detops._C.emulated and case.rescores else (0, 1, 40, 600)
    for count, kind in zip(counts, list(case.boxes.kinds) * 4, strict=False):
        detections = case.boxes.random(kind, count, "odd").to(dtype)
        on_device = detections.to(dtype, device)
        for threshold in (-0.1, 0.01, 0.5):
            kept = len(case.keep(detections, threshold))
            limits = [(None, limit) for limit in (0, max(0, kept - 1), kept + 1, 2**31 - 1)]
            if "score_threshold" in case.limits:
                limits += [(s, m) for s in (-math.inf, 0.3, math.inf) for m in (None, count // 3)]
            for score, limit in limits:
                index = torch.arange(count)
                if score is not None:
                    index = (detections.scores.double() > score).nonzero()[:, 0]
                expected_outputs = [
                    t[:limit] for t in case.outputs(detections.rows(index), threshold)
                ]
                expected_outputs[0] = index[expected_outputs[0]]
                options = {"score_threshold": score, "max_output": limit}
                options = {name: options[name] for name in case.limits}
                found = case.outputs(on_device, threshold, **options)
                assert same(found, expected_outputs), (kind, count, threshold, options)


@each_case(lambda case: "score_threshold" in case.limits)
@pytest.mark.parametrize("dtype", [*WIDE, torch.float16])
def test_score_threshold_is_exclusive_and_compared_in_float64(case, dtype, device):
    scores = torch.tensor([math.nan, 0.1, -math.inf]).to(dtype)
    detections = Detections(case.boxes.disjoint(3), scores, torch.zeros(3).long()).to(dtype, device)
    value = scores[1].item()
    for threshold, kept in (
        (value, []),
        (math.nextafter(value, 0), [1]),
        (-math.inf, [1]),
        (None, [0, 1, 2]),
    ):
        assert case.keep(detections, 0.5, score_threshold=threshold).tolist() == kept
