import math

import pytest
import torch
from reference_weighted_box_fusion import weighted_box_fusion as reference

import detops

TYPES = ("avg", "max", "box_and_model_avg", "absent_model_aware_avg")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def detections(models=3, count=40, labels=3, seed=0, dtype=torch.float64, device="cpu"):
    """Returns detections of several models, each of a random selection of the same objects."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(max(count // 2, 1), 2, generator=generator) * 60
    objects = torch.cat(
        [corner, corner + 8 + 20 * torch.rand(corner.shape, generator=generator)], 1
    )
    found = []
    for _ in range(models):
        of = torch.randint(len(objects), (count,), generator=generator)
        boxes = objects[of] + 2 * torch.randn(count, 4, generator=generator)
        scores = torch.rand(count, generator=generator)
        found.append((boxes.to(device, dtype), scores.to(device, dtype), (of % labels).to(device)))
    return [list(tensors) for tensors in zip(*found, strict=True)]


def assert_close(found, expected, tolerance=1e-12):
    boxes, scores, labels = (t.cpu() for t in found)
    torch.testing.assert_close(scores.double(), expected[1], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(boxes.double(), expected[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(labels.long(), expected[2])


@pytest.mark.parametrize("conf_type", TYPES)
@pytest.mark.parametrize("models", [1, 2, 5])
def test_fusion_of_any_number_of_models_matches_reference(device, conf_type, models):
    inputs = detections(models, device=device)
    weights = [1.0, 2.5, 0.5, 3.0, 1.5][:models]
    for options in (
        {},
        dict(weights=weights),
        dict(weights=weights, iou_threshold=0.3, skip_box_threshold=0.2),
        dict(iou_threshold=0.0, allows_overflow=True),
        dict(weights=weights, iou_threshold=0.9, allows_overflow=True),
        dict(iou_threshold=1.0),
    ):
        expected = reference(*inputs, conf_type=conf_type, **options)
        assert len(expected[1]) > 0
        assert_close(detops.weighted_box_fusion(*inputs, conf_type=conf_type, **options), expected)


def test_fusion_matches_hand_computed_boxes(device):
    one = torch.tensor([[0.0, 0, 10, 10], [40, 40, 60, 60]], device=device)
    other = torch.tensor([[2.0, 0, 12, 10], [40, 40, 60, 60]], device=device)
    scores = [torch.tensor([0.75, 0.5], device=device), torch.tensor([0.25, 0.5], device=device)]
    labels = [torch.tensor([1, 1], device=device), torch.tensor([1, 2], device=device)]
    boxes, fused, classes = detops.weighted_box_fusion([one, other], scores, labels)
    # The second pair has two labels: one of the two models found each.
    assert boxes.tolist() == [[0.5, 0, 10.5, 10], [40, 40, 60, 60], [40, 40, 60, 60]]
    assert fused.tolist() == [0.5, 0.25, 0.25] and classes.tolist() == [1, 1, 2]
    weighted = detops.weighted_box_fusion([one, other], scores, labels, [3, 1], conf_type="max")
    assert weighted[1].tolist() == pytest.approx([0.75, 0.5, 0.5 / 3])


def test_fused_box_moves_as_boxes_are_added(device):
    """The third box overlaps the fusion of the first two enough, but neither of them alone."""
    boxes = [torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[4.0, 0, 14, 10]])]
    boxes.append(torch.tensor([[1.9, 0, 12, 10.2]]))
    scores = [torch.tensor([s]) for s in (0.9, 0.8, 0.1)]
    labels = [torch.zeros(1, dtype=torch.int64)] * 3
    inputs = [[t.to(device) for t in tensors] for tensors in (boxes, scores, labels)]
    assert_close(
        detops.weighted_box_fusion(*inputs, iou_threshold=0.42),
        reference(*inputs, iou_threshold=0.42),
        1e-6,
    )
    assert len(detops.weighted_box_fusion(*inputs, iou_threshold=0.42)[1]) == 1


def test_fusion_resolves_ties_in_input_order(isa, device):
    """Equal scores follow input order; equal overlaps join the first box."""
    box = [[0.0, 0, 10, 10], [8, 0, 18, 10], [4, 0, 14, 10], [0, 0, 10, 10]]
    inputs = [
        [torch.tensor(box, device=device, dtype=torch.double)] * 2,
        [torch.full((4,), 0.5, device=device, dtype=torch.double)] * 2,
        [torch.tensor([2, 2, 2, 1], device=device)] * 2,
    ]
    for threshold in (0.1, 0.4, 0.5):
        found = detops.weighted_box_fusion(*inputs, iou_threshold=threshold)
        assert_close(found, reference(*inputs, iou_threshold=threshold))


def test_fusion_ignores_malformed_boxes_and_scores(isa, device):
    nan, inf = math.nan, math.inf
    box = [
        [0.0, 0, 10, 10],
        [10, 0, 0, 10],
        [0, 5, 9, 5],
        [nan, 0, 1, 1],
        [0, 0, inf, 1],
        [-inf, 0, 1, 1],
    ]
    box += [[0.0, 0, 10, 10]] * 6 + [[-1e200, -1e200, 1e200, 1e200]]
    score = [0.5] * 6 + [nan, inf, 0, -1, -inf, 0.1, 0.5]
    inputs = [
        [torch.tensor(box, dtype=torch.double, device=device)],
        [torch.tensor(score, dtype=torch.double, device=device)],
        [torch.zeros(13, dtype=torch.int64, device=device)],
    ]
    boxes, scores, labels = detops.weighted_box_fusion(*inputs, skip_box_threshold=0.2)
    assert (
        boxes.tolist() == [[0, 0, 10, 10]] and scores.tolist() == [0.5] and labels.tolist() == [0]
    )
    empty = detops.weighted_box_fusion(*inputs, skip_box_threshold=2.0)
    assert [t.shape for t in empty] == [(0, 4), (0,), (0,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("integer", [torch.int32, torch.uint8, torch.int64])
def test_fusion_computes_in_float64_and_keeps_dtypes(device, dtype, integer):
    boxes, scores, labels = detections(dtype=dtype, device=device)
    labels = [c.to(integer) for c in labels]
    found = detops.weighted_box_fusion(boxes, scores, labels)
    assert [t.dtype for t in found] == [dtype, dtype, integer]
    exact = detops.weighted_box_fusion(
        [b.double() for b in boxes], [s.double() for s in scores], labels
    )
    for a, b in zip(found, exact, strict=True):
        assert torch.equal(a, b.to(a.dtype))
    mixed = detops.weighted_box_fusion([boxes[0], *(b.double() for b in boxes[1:])], scores, labels)
    assert torch.equal(mixed[0], exact[0])


def test_model_index_out_of_range_raises_or_is_ignored(device, values_are_checked):
    boxes, scores, labels = (torch.cat(tensors) for tensors in detections(2, device=device))
    models = torch.arange(80, device=device) // 40
    op, options = torch.ops.detops.weighted_box_fusion, ([1.0, 1.0], 0.5, 0.0, "avg", False)
    for invalid in (-1, 2, 2**63 - 1, -(2**63)):
        models[5] = invalid
        if values_are_checked:
            with pytest.raises(
                RuntimeError, match=rf"models must be 0 to 1, got {invalid} at index 5"
            ):
                op(boxes, scores, labels, models, *options)
        else:
            keep = torch.arange(80, device=device) != 5
            found = op(boxes, scores, labels, models, *options)
            expected = op(*(t[keep] for t in (boxes, scores, labels, models)), *options)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_backward_of_fusion_raises():
    boxes, scores, labels = detections(2)
    fused = detops.weighted_box_fusion([b.requires_grad_() for b in boxes], scores, labels)
    with pytest.raises(RuntimeError, match="derivative for detops::weighted_box_fusion is not"):
        fused[0].sum().backward()


def test_fusion_rejects_bad_input(device):
    boxes, scores, labels = detections(2, 5, device=device)
    fuse = detops.weighted_box_fusion
    for call, message in (
        (lambda: fuse([], [], []), "must be lists of one tensor per model"),
        (lambda: fuse(boxes, scores[:1], labels), "lists of one tensor per model, got 2, 1 and 2"),
        (lambda: fuse(boxes, scores, labels, [1.0]), "weights must be 2 numbers, got 1"),
        (lambda: fuse(boxes, [scores[0], scores[1][:3]], labels), r"boxes\[1\], scores\[1\]"),
    ):
        with pytest.raises(ValueError, match=f"detops.weighted_box_fusion: {message}|{message}"):
            call()
    for call, message in (
        (lambda: fuse(boxes, scores, labels, [1.0, 0.0]), "weights must be positive"),
        (lambda: fuse(boxes, scores, labels, [1.0, math.inf]), "weights must be positive"),
        (
            lambda: fuse(boxes * 33, scores * 33, labels * 33),
            "weights must be 1 to 64 numbers, got 66",
        ),
        (lambda: fuse(boxes, scores, labels, conf_type="mean"), "conf_type must be avg, max"),
        (lambda: fuse(boxes, scores, labels, iou_threshold=math.nan), "iou_threshold must be"),
        (lambda: fuse(boxes, scores, [c.float() for c in labels]), "labels must be"),
        (lambda: fuse([b[:, :3] for b in boxes], scores, labels), r"boxes must be \[N, 4\]"),
    ):
        with pytest.raises(RuntimeError, match=f"detops.weighted_box_fusion: {message}"):
            call()
