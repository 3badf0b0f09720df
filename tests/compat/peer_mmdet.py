"""mmdet matchers with and without detops; test_compat_mmdet.py runs this in its own process."""

import pytest
import torch
from patched import record_ops

from detops.compat import provide

with provide("mmcv"):  # mmdet imports mmcv
    from mmdet.models.task_modules.assigners import HungarianAssigner, TopkHungarianAssigner
    from mmengine.structures import InstanceData

BOXES = dict(type="BBoxL1Cost", weight=5.0, box_format="xywh")
OVERLAPS = dict(type="IoUCost", iou_mode="giou", weight=2.0)


@pytest.fixture(autouse=True)
def never_use_scipy(monkeypatch):
    """By default SciPy solves small matrices, because it is faster for them."""
    monkeypatch.setattr("detops.compat.assignment.MIN_COSTS", 0)


def instances(queries, objects):
    g = torch.Generator().manual_seed(queries + objects)
    corner = torch.rand(queries + objects, 2, generator=g) * 60
    boxes = torch.cat([corner, corner + 5 + torch.rand(corner.shape, generator=g) * 30], 1)
    scores = torch.randn(queries, 7, generator=g)
    found = InstanceData(bboxes=boxes[:queries], scores=scores, labels=scores.argmax(1))
    labels = torch.randint(7, (objects,), generator=g)
    return found, InstanceData(bboxes=boxes[queries:], labels=labels)


def test_small_matrices_are_solved_by_scipy(monkeypatch):
    monkeypatch.undo()
    assigner = HungarianAssigner([BOXES])
    for queries, expected in ((300, True), (100, False)):
        arguments = instances(queries, 20)
        with provide("mmcv"):
            _, ran = record_ops(lambda: assigner.assign(*arguments, dict(img_shape=(100, 100))))  # noqa: B023
        assert ("linear_assignment" in ran) == expected


@pytest.mark.parametrize("sizes", [(100, 12), (8, 20), (30, 30), (5, 0), (1, 1)])
def test_detr_assigner_gives_the_same_assignment(sizes):
    assigner = HungarianAssigner([dict(type="ClassificationCost", weight=1.0), BOXES, OVERLAPS])
    found, objects = instances(*sizes)

    def run():
        return assigner.assign(found, objects, img_meta=dict(img_shape=(100, 100)))

    theirs, ran = record_ops(run)
    assert "linear_assignment" not in ran
    with provide("mmcv"):
        ours, ran = record_ops(run)
    assert ("linear_assignment" in ran) == (sizes[1] > 0)
    assert torch.equal(ours.gt_inds, theirs.gt_inds) and torch.equal(ours.labels, theirs.labels)


def test_ddq_assigner_gives_the_same_assignment():
    assigner = TopkHungarianAssigner(
        cls_cost=dict(type="FocalLossCost", weight=2.0), reg_cost=BOXES, iou_cost=OVERLAPS, topk=4
    )
    found, objects = instances(60, 9)
    found.scores = found.scores.sigmoid()
    meta = dict(img_shape=(100, 100))

    def run():
        return assigner.assign(
            found.scores, found.bboxes, objects.bboxes, objects.labels, img_meta=meta
        )

    theirs, ran = record_ops(run)
    assert "linear_assignment" not in ran
    with provide("mmcv"):
        ours, ran = record_ops(run)
    assert "linear_assignment" in ran
    for name in vars(theirs):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b
