import math
import subprocess
import sys

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import nms as torchvision_nms

import detops

LOW = [0.0, 1e-45, 1e-40, 1e-30, 1e-10, 1e-3, 0.01, 0.02, 0.0200001]
THRESHOLDS = [-0.1, *LOW, 0.2, 0.3, 1 / 3, 0.5, 0.6, 0.7, 0.999, 1.0, 1.5, math.inf]
ODD = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1e-30, 0.0]


def odd_case(rng, count, dtype=torch.float32):
    """Returns boxes and scores of a random kind: smooth, gridded, tied, crowded or broken."""
    kind = rng.integers(5)
    low = rng.uniform(-20, 80, (count, 2))
    side = rng.uniform(0, 40, (count, 2)) if kind < 4 else rng.uniform(-10, 40, (count, 2))
    boxes = np.concatenate([low, low + side], 1)
    if kind == 1:  # IoU meets the threshold exactly
        boxes = np.round(boxes / 5) * 5
    if kind == 2:  # near copies
        boxes = boxes[rng.integers(0, max(1, count // 10), count)] + rng.normal(0, 0.5, (count, 4))
    scores = rng.random(count)
    if rng.random() < 0.5:
        scores = np.round(scores * 10) / 10
    if kind >= 3 and count:
        for _ in range(max(1, count // 8)):
            boxes[rng.integers(count), rng.integers(4)] = rng.choice(ODD)
            scores[rng.integers(count)] = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return torch.from_numpy(boxes).to(dtype), torch.from_numpy(scores).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nms_matches_torchvision_on_random_cases(isa, dtype, two_threads):
    rng = np.random.default_rng(0)
    for _ in range(700):
        boxes, scores = odd_case(rng, int(rng.integers(0, 200)), dtype)
        threshold = float(rng.choice(THRESHOLDS))
        expected = torchvision_nms(boxes, scores, threshold)
        for keep in two_threads(lambda: detops.nms(boxes, scores, threshold)):  # noqa: B023
            assert torch.equal(keep, expected), (boxes, scores, threshold)


def sparse_case(rng, kind, count):
    """Returns boxes that NMS mostly keeps, so that it uses the grid: one kind per part of it."""
    centre = rng.uniform(0, 1500, (count, 2))
    side = rng.uniform(10, 60, (count, 2))
    if kind == "sizes":  # every size class from points to the whole image
        side = np.exp(rng.uniform(-5, 7, (count, 1))) * np.exp(rng.normal(0, 0.3, (count, 2)))
    elif kind == "thin":
        stretch = np.exp(rng.normal(0, 2, (count, 1)))
        side = side * np.concatenate([stretch, 1 / stretch], 1)
    elif kind == "outliers":
        far = rng.random(count) < 0.1
        centre[far] += rng.choice([-1e7, 1e5, 1e7, 1e18], (int(far.sum()), 1))
    elif kind == "near copies":
        source = rng.integers(0, count // 2, count)
        centre = centre[source] + rng.normal(0, 3, (count, 2))
        side = side[source] * np.exp(rng.normal(0, 0.1, (count, 2)))
    elif kind == "far from the origin":
        centre = centre * 0.01 + 30000
        side = np.exp(rng.uniform(-6, 0, (count, 2)))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], 1)
    if kind == "integers":  # IoU meets the threshold exactly
        boxes = np.round(boxes / 8) * 8
    if kind == "broken":
        inverted = rng.random(count) < 0.6
        boxes[inverted] = boxes[inverted][:, [2, 3, 0, 1]]
        for value in [*ODD, -1e4, 1e4]:
            boxes[rng.integers(0, count, count // 40), rng.integers(0, 4, count // 40)] = value
    return torch.from_numpy(boxes), torch.from_numpy(rng.permutation(count) / count)


SPARSE = ["uniform", "sizes", "thin", "outliers", "near copies", "far from the origin", "integers"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*SPARSE, "broken"])
def test_nms_matches_torchvision_on_many_boxes(isa, device, dtype, kind):
    rng = np.random.default_rng(1)
    for threshold in [*LOW, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]:
        boxes, scores = (t.to(dtype) for t in sparse_case(rng, kind, 1500))
        expected = torchvision_nms(boxes, scores, threshold)
        keep = detops.nms(boxes.to(device), scores.to(device), threshold)
        assert torch.equal(keep.cpu(), expected)


def crowd_case(rng, kind, count):
    """Returns boxes that the index for low thresholds must separate: one kind per part of it."""
    index = np.arange(count)
    corner = np.stack([index % 40, index // 40], 1) * 10.0
    if kind == "disjoint":
        boxes = np.concatenate([corner, corner + 8], 1)
    elif kind == "touching":  # table cells, which share edges but no area
        boxes = np.concatenate([corner, corner + 10], 1)
    elif kind == "overlapping by a hair":
        boxes = np.concatenate([corner, corner + 10 + 1e-4], 1)
    elif kind == "ladder":
        low = index[:, None] * np.array([99.0, 0.0])
        boxes = np.concatenate([low, low + 100], 1)
    elif kind == "crosses":  # lines that cross within a pixel
        line = np.stack([index * 0, index, index * 0 + count, index + 0.5], 1).astype(float)
        boxes = np.where(rng.random((count, 1)) < 0.5, line, line[:, [1, 0, 3, 2]])
    elif kind == "nested":
        half = 1.01 ** -(index % 4000)[:, None] * 1e6
        boxes = np.concatenate([-half, -half, half, half], 1)
    elif kind == "identical":
        boxes = np.tile([[3.0, 4, 50, 60]], (count, 1))
    elif kind == "one huge box":
        boxes = np.concatenate([corner, corner + 8], 1)
        boxes[count // 2] = [-1e4, -1e4, 1e4, 1e4]
    else:  # products and quotients of areas that leave the range of float32
        side = 10.0 ** rng.uniform(-15, 15, (count, 2))
        low = rng.normal(0, 1, (count, 2)) * 10.0 ** rng.uniform(-20, 14, (count, 1))
        boxes = np.concatenate([low, low + side], 1)
    return torch.from_numpy(boxes), torch.from_numpy(rng.permutation(count) / count)


CROWDS = ["disjoint", "touching", "overlapping by a hair", "ladder", "crosses", "nested"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*CROWDS, "identical", "one huge box", "far apart in size"])
def test_nms_matches_torchvision_at_low_thresholds(isa, device, dtype, kind):
    rng = np.random.default_rng(8)
    for threshold in LOW:
        boxes, scores = (t.to(dtype) for t in crowd_case(rng, kind, 1500))
        expected = torchvision_nms(boxes, scores, threshold)
        keep = detops.nms(boxes.to(device), scores.to(device), threshold)
        assert torch.equal(keep.cpu(), expected), threshold


@pytest.mark.parametrize("kind", ["touching", "crosses", "far apart in size"])
def test_nms_matches_reference_at_low_thresholds(kind):
    rng = np.random.default_rng(9)
    for threshold in LOW:
        boxes, scores = crowd_case(rng, kind, 120)
        expected = reference.nms(boxes.float(), scores, threshold)
        assert torch.equal(detops.nms(boxes.float(), scores, threshold), expected), threshold


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*CROWDS, "far apart in size"])
def test_batched_nms_matches_class_loop_at_low_thresholds(two_threads, kind):
    rng = np.random.default_rng(10)
    boxes, scores = crowd_case(rng, kind, 40000)
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
    least = 2.0**-149
    for halves, rounded in ((1, 0), (3, 2), (5, 2), (7, 4)):
        boxes, scores = pair(device, (2.0**60, 2.0**15), (halves * 2.0**-40, 2.0**-35))
        for times in range(6):
            keep = detops.nms(boxes, scores, times * least if times else zero)
            assert keep.tolist() == ([0] if rounded > times else [0, 1]), (halves, times)
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
@pytest.mark.parametrize("kind", [*SPARSE, "broken", "one spot"])
def test_threads_that_split_one_class_match_single_thread(isa, two_threads, kind):
    """Uses enough boxes that each thread processes a strip of the image."""
    rng = np.random.default_rng(4)
    for threshold in [0.0, 0.01, 0.05, 0.3, 0.5, 0.7]:
        if kind == "one spot":
            boxes, scores = odd_case(rng, 40000)
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


def test_nms_matches_reference_on_random_cases(device):
    rng = np.random.default_rng(2)
    for _ in range(60):
        boxes, scores = odd_case(rng, int(rng.integers(0, 40)))
        threshold = float(rng.choice(THRESHOLDS))
        keep = detops.nms(boxes.to(device), scores.to(device), threshold)
        assert torch.equal(keep.cpu(), reference.nms(boxes, scores, threshold))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4, st.floats(width=32)), max_size=12),
    st.sampled_from(THRESHOLDS),
)
def test_nms_matches_reference_for_any_floats(rows, threshold):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    boxes, scores = table[:, :4], table[:, 4]
    expected = reference.nms(boxes, scores, threshold)
    assert torch.equal(detops.nms(boxes, scores, threshold), expected)


def test_nms_suppresses_only_iou_above_threshold(isa, device):
    # Their IoU is the float32 nearest to 1/3, which is slightly above 1/3.
    boxes = torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1]], device=device)
    scores = torch.tensor([1.0, 0.5], device=device)
    iou = float(np.float32(1) / np.float32(3))
    assert detops.nms(boxes, scores, 1 / 3).tolist() == [0]
    assert detops.nms(boxes, scores, math.nextafter(iou, 0)).tolist() == [0]
    assert detops.nms(boxes, scores, iou).tolist() == [0, 1]


def test_nms_keeps_first_of_equal_scores(device):
    boxes = torch.tensor([[0.0, 0, 1, 1]] * 3 + [[5.0, 5, 6, 6]] * 2, device=device)
    assert detops.nms(boxes, torch.ones(5, device=device), 0.5).tolist() == [0, 3]
    scores = torch.tensor([-0.0, 0.0], device=device)
    assert detops.nms(boxes[:2] * 0, scores, 0.5).tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, device):
    boxes, scores = odd_case(np.random.default_rng(3), 300)
    boxes, scores = boxes.to(device, dtype), scores.to(device, dtype)
    expected = detops.nms(boxes.float(), scores.float(), 0.5)
    assert torch.equal(detops.nms(boxes, scores, 0.5), expected)
    assert torch.equal(detops.nms(boxes, scores.double(), 0.5), expected)


def test_nms_accepts_strided_tensors(device):
    boxes, scores = odd_case(np.random.default_rng(4), 100)
    boxes, scores = boxes.to(device), scores.to(device)
    expected = detops.nms(boxes, scores, 0.5)
    assert torch.equal(detops.nms(boxes.t().contiguous().t(), scores, 0.5), expected)
    wide = torch.stack([scores, scores], 1)[:, 0]
    assert torch.equal(detops.nms(boxes.repeat(1, 2)[:, :4], wide, 0.5), expected)


def test_empty_boxes_give_empty_result(device):
    keep = detops.nms(torch.empty(0, 4, device=device), torch.empty(0, device=device), 0.5)
    assert keep.shape == (0,) and keep.dtype == torch.int64 and keep.device.type == device


def labels_of(rng, count):
    kind = rng.integers(4)
    if kind == 0:
        return torch.from_numpy(rng.integers(0, 5, count))
    if kind == 1:
        return torch.from_numpy(rng.integers(0, 256, count)).to(torch.uint8)
    if kind == 2:
        return torch.from_numpy(rng.integers(-3, 3, count)).to(torch.int32)
    extremes = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    return torch.from_numpy(extremes[rng.integers(0, 5, count)])


def test_batched_nms_matches_loop_over_classes(isa, two_threads):
    rng = np.random.default_rng(5)
    for i in range(300):
        # From a few thousand boxes on, the threads split the classes.
        boxes, scores = odd_case(rng, 12_000 if i == 0 else int(rng.integers(0, 400)))
        labels = labels_of(rng, len(boxes))
        threshold = float(rng.choice(THRESHOLDS))
        expected = reference.batched_nms(boxes, scores, labels, threshold, torchvision_nms)
        for keep in two_threads(lambda: detops.batched_nms(boxes, scores, labels, threshold)):  # noqa: B023
            assert torch.equal(keep, expected)


def test_batched_nms_on_device_matches_reference(device):
    rng = np.random.default_rng(6)
    for _ in range(20):
        boxes, scores = odd_case(rng, int(rng.integers(0, 2000)))
        labels = labels_of(rng, len(boxes))
        keep = detops.batched_nms(boxes.to(device), scores.to(device), labels.to(device), 0.5)
        expected = reference.batched_nms(boxes, scores, labels, 0.5, torchvision_nms)
        assert torch.equal(keep.cpu(), expected)


def test_batched_nms_separates_classes_at_negative_coordinates(device):
    boxes = torch.tensor([[-50.0, -50, -10, -10], [10, 10, 50, 50]], device=device)
    scores = torch.tensor([0.9, 0.8], device=device)
    labels = torch.tensor([1, 0], device=device)
    assert detops.batched_nms(boxes, scores, labels, 0.1).tolist() == [0, 1]


B, S, L = torch.rand(3, 4), torch.rand(3), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.nms(B[:, :3], S, 0.5), r"detops.nms: boxes must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.nms(B[0], S, 0.5), r"detops.nms: boxes must be \[N, 4\], got \[4\]"),
        (lambda: detops.nms(B, S[:2], 0.5), r"detops.nms: scores must be \[3\], got \[2\]"),
        (lambda: detops.nms(B, B, 0.5), r"detops.nms: scores must be \[3\], got \[3, 4\]"),
        (lambda: detops.nms(B.long(), S, 0.5), "detops.nms: boxes must be float32.*got int64"),
        (lambda: detops.nms(B, S.long(), 0.5), "detops.nms: scores must be float32.*got int64"),
        (lambda: detops.nms(B, S, math.nan), "detops.nms: iou_threshold must be a number, got nan"),
        (lambda: detops.nms(B, S.to("meta"), 0.5), "detops.nms: scores must be on the device"),
        (
            lambda: detops.batched_nms(B, S, L[:2], 0.5),
            "detops.batched_nms: idxs must be \\[3\\], got \\[2\\]",
        ),
        (
            lambda: detops.batched_nms(B, S, S.to(torch.complex64), 0.5),
            "detops.batched_nms: idxs must be integers",
        ),
        (lambda: detops.batched_nms(B, S, L, math.nan), "detops.batched_nms: iou_threshold"),
    ],
)
def test_nms_and_batched_nms_reject_bad_input(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call()


def test_fake_tensors_raise_the_same_error():
    with torch._subclasses.FakeTensorMode():
        boxes, scores = torch.empty(3, 3), torch.empty(3)
        with pytest.raises(RuntimeError, match=r"detops.nms: boxes must be \[N, 4\], got"):
            detops.nms(boxes, scores, 0.5)


@pytest.mark.slow
def test_nms_and_batched_nms_pass_opcheck():
    torch.library.opcheck(torch.ops.detops.nms.default, (B, S, 0.5))
    torch.library.opcheck(torch.ops.detops.batched_nms.default, (B, S, L, 0.5))


@pytest.mark.slow
def test_compiled_nms_matches_eager():
    def call(boxes, scores, labels):
        keep = detops.batched_nms(boxes, scores, labels, 0.5)
        return boxes[keep], detops.nms(boxes, scores, 0.5)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 50):
        boxes = reference.random_boxes(count)
        args = (boxes, torch.rand(count), torch.randint(0, 3, (count,)))
        for got, expected in zip(compiled(*args), call(*args), strict=True):
            assert torch.equal(got, expected)


def test_autocast_computes_in_float32():
    boxes, scores = odd_case(np.random.default_rng(7), 50)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.nms(boxes, scores, 0.5), torchvision_nms(boxes, scores, 0.5))


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
