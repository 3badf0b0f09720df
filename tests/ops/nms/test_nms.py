"""NMS against torchvision, and each kernel variant: grid, index for low thresholds, strips."""

import subprocess
import sys

import numpy as np
import pytest
import reference
import torch
from nms_inputs import (
    DENSE_KINDS,
    LOW_THRESHOLDS,
    SPARSE_KINDS,
    THRESHOLDS,
    dense_case,
    mixed_case,
    sparse_case,
)
from torchvision.ops import nms as torchvision_nms

import detops
from detops.bench.case import clustered


@pytest.mark.parametrize("rounds", [150, pytest.param(700, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nms_matches_torchvision_on_random_cases(isa, dtype, two_threads, rounds):
    rng = np.random.default_rng(rounds)
    for _ in range(rounds):
        boxes, scores = mixed_case(rng, int(rng.integers(0, 200)), dtype)
        threshold = float(rng.choice(THRESHOLDS))
        expected = torchvision_nms(boxes, scores, threshold)
        for keep in two_threads(lambda: detops.nms(boxes, scores, threshold)):  # noqa: B023
            assert torch.equal(keep, expected), (boxes, scores, threshold)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*SPARSE_KINDS, "broken"])
def test_nms_matches_torchvision_on_many_boxes(isa, device, dtype, kind):
    rng = np.random.default_rng(1)
    for threshold in [*LOW_THRESHOLDS, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]:
        boxes, scores = (t.to(dtype) for t in sparse_case(rng, kind, 1500))
        expected = torchvision_nms(boxes, scores, threshold)
        keep = detops.nms(boxes.to(device), scores.to(device), threshold)
        assert torch.equal(keep.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*DENSE_KINDS, "identical", "one huge box", "far apart in size"])
def test_nms_matches_torchvision_at_low_thresholds(isa, device, dtype, kind):
    rng = np.random.default_rng(8)
    for threshold in LOW_THRESHOLDS:
        boxes, scores = (t.to(dtype) for t in dense_case(rng, kind, 1500))
        expected = torchvision_nms(boxes, scores, threshold)
        keep = detops.nms(boxes.to(device), scores.to(device), threshold)
        assert torch.equal(keep.cpu(), expected), threshold


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DENSE_KINDS, "far apart in size"])
def test_batched_nms_matches_class_loop_at_low_thresholds(two_threads, kind):
    rng = np.random.default_rng(10)
    boxes, scores = dense_case(rng, kind, 40000)
    boxes, idxs = boxes.float(), torch.from_numpy(rng.integers(0, 3, 40000))
    for threshold in (0.0, 1e-40, 0.01):
        one, two = two_threads(lambda: detops.nms(boxes, scores, threshold))  # noqa: B023
        assert torch.equal(one, two)
        expected = reference.batched_nms(boxes, scores, idxs, threshold, detops.nms)
        for keep in two_threads(lambda: detops.batched_nms(boxes, scores, idxs, threshold)):  # noqa: B023
            assert torch.equal(keep, expected)


def pair(device, side1, side2):
    """Returns two boxes with a common corner; the first has the higher score."""
    boxes = torch.tensor([[0, 0, *side1], [0, 0, *side2]], dtype=torch.float32, device=device)
    return boxes, torch.tensor([1.0, 0.5], device=device)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_nms_rounds_subnormal_iou_to_nearest_even(isa, device, zero):
    """A subnormal IoU rounds to a multiple of the smallest number; a tie rounds to an even one."""
    smallest = 2.0**-149
    for halves, rounded in ((1, 0), (3, 2), (5, 2), (7, 4)):
        boxes, scores = pair(device, (2.0**60, 2.0**15), (halves * 2.0**-40, 2.0**-35))
        for multiple in range(6):
            keep = detops.nms(boxes, scores, multiple * smallest if multiple else zero)
            assert keep.tolist() == ([0] if rounded > multiple else [0, 1]), (halves, multiple)
    # The product of the area and the threshold is subnormal.
    boxes, scores = pair(device, (2.0**-25, 2.0**-25), (2.0**-75, 2.0**-74))
    assert detops.nms(boxes, scores, 1e-30).tolist() == [0]
    assert detops.nms(boxes, scores, 1.6e-30).tolist() == [0, 1]


@pytest.mark.parametrize("count", [255, 256, 511, 512, 513, 2100])
def test_nms_resolves_long_suppression_chains(device, count):
    """Each box would suppress the next two, so the result depends on the first box."""
    step = torch.arange(count)[:, None] * torch.tensor([10.0, 0.0])
    boxes = torch.cat([step, step + torch.tensor([100.0, 50.0])], 1).to(device)
    scores = torch.linspace(1, 0, count, device=device)
    shuffled = torch.randperm(count)
    keep = detops.nms(boxes[shuffled], scores[shuffled], 0.6)
    assert torch.equal(shuffled[keep.cpu()], torch.arange(0, count, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SPARSE_KINDS, "broken", "one spot"])
def test_threads_that_split_one_class_match_single_thread(isa, two_threads, kind):
    """Uses enough boxes that each thread processes a strip of the image."""
    rng = np.random.default_rng(4)
    for threshold in [0.0, 0.01, 0.05, 0.3, 0.5, 0.7]:
        if kind == "one spot":
            boxes, scores = mixed_case(rng, 40000)
        else:
            boxes, scores = sparse_case(rng, kind, 40000)
        one, two = two_threads(lambda: detops.nms(boxes.float(), scores, threshold))  # noqa: B023
        assert torch.equal(one, two)


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("scores_dtype", [torch.float32, torch.float64])
def test_threads_match_single_thread_with_tied_scores(two_threads, scores_dtype, labels):
    rng = np.random.default_rng(6)
    boxes, scores = sparse_case(rng, "uniform", 90000)
    scores = (100 * scores).round().to(scores_dtype)
    idxs = torch.from_numpy((rng.random(90000) ** 4 * labels).astype("int64"))
    one, two = two_threads(lambda: detops.batched_nms(boxes, scores, idxs, 0.5))
    assert torch.equal(one, two)


@pytest.mark.parametrize("threads", [3, 8])
def test_many_threads_match_single_thread(threads):
    rng = np.random.default_rng(5)
    before = torch.get_num_threads()
    for kind in ("uniform", "sizes", "near copies"):
        boxes, scores = sparse_case(rng, kind, 40000)
        one = detops.nms(boxes, scores, 0.5)
        torch.set_num_threads(threads)
        try:
            assert torch.equal(detops.nms(boxes, scores, 0.5), one)
        finally:
            torch.set_num_threads(before)


@pytest.mark.slow
def test_nms_of_a_million_boxes_uses_little_memory():
    script = """
import resource, torch, detops
centre, side = torch.rand(1_000_000, 2) * 4000, torch.rand(1_000_000, 2) * 60 + 4
boxes, scores = torch.cat([centre - side, centre + side], 1), torch.rand(1_000_000)
detops.nms(boxes[:1000], scores[:1000], 0.5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
detops.nms(boxes, scores, 0.5)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 200, f"{run.stdout} MiB"


def random_labels(rng, count):
    kind = rng.integers(4)
    if kind == 0:
        return torch.from_numpy(rng.integers(0, 5, count))
    if kind == 1:
        return torch.from_numpy(rng.integers(0, 256, count)).to(torch.uint8)
    if kind == 2:
        return torch.from_numpy(rng.integers(-3, 3, count)).to(torch.int32)
    extremes = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    return torch.from_numpy(extremes[rng.integers(0, 5, count)])


@pytest.mark.parametrize("rounds", [60, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_batched_nms_matches_loop_over_classes(isa, device, two_threads, rounds):
    rng = np.random.default_rng(rounds)
    for i in range(rounds):
        # From a few thousand boxes on, the threads split the classes.
        boxes, scores = mixed_case(rng, 12_000 if i == 0 else int(rng.integers(0, 400)))
        labels = random_labels(rng, len(boxes))
        threshold = float(rng.choice(THRESHOLDS))
        expected = reference.batched_nms(boxes, scores, labels, threshold, torchvision_nms)
        on_device = [t.to(device) for t in (boxes, scores, labels)]
        for keep in two_threads(lambda: detops.batched_nms(*on_device, threshold)):  # noqa: B023
            assert torch.equal(keep.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [1, 3])
def test_batched_nms_matches_torchvision_on_many_boxes(device, labels, dtype):
    generator = torch.Generator().manual_seed(0)
    boxes, scores = (t.to(dtype) for t in clustered(generator, 17_000))
    scores = (scores * 1000).round() - 500
    idxs = torch.randint(labels, (17_000,), generator=generator)
    expected = reference.batched_nms(boxes, scores, idxs, 0.5, torchvision_nms)
    keep = detops.batched_nms(boxes.to(device), scores.to(device), idxs.to(device), 0.5)
    assert torch.equal(keep.cpu(), expected)
    assert keep.is_contiguous() and keep.untyped_storage().nbytes() <= 2 * keep.nbytes


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.3, 0.7])
def test_nms_is_exact_when_extents_overflow_float64(threshold, isa):
    """The extent of all boxes and the sum of their areas overflow float64."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.rand(4000, 2, dtype=torch.float64, generator=generator) - 0.5
    sides = 0.5 + torch.rand(4000, 2, dtype=torch.float64, generator=generator)
    boxes = torch.cat([40 * centres - sides / 2, 40 * centres + sides / 2], 1)
    boxes[::2, ::2] += 2.0**50
    boxes[1::2, ::2] -= 2.0**50
    scores = torch.rand(4000, dtype=torch.float64, generator=generator)
    unit = torch.tensor([2.0**973, 2.0**46], dtype=torch.float64).repeat(2)
    huge = boxes * unit
    assert huge.isfinite().all() and torch.isinf(huge[:, 0].max() - huge[:, 0].min())
    assert torch.isinf(detops.box_area(huge).sum())
    expected = detops.nms(boxes, scores, threshold)
    assert len(expected) < 4000
    assert torch.equal(detops.nms(huge, scores, threshold), expected)
