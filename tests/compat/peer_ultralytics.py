"""ultralytics with and without detops; test_compat_transformers.py runs this."""

import pytest
import torch
from patched import record_ops
from ultralytics.nn.tasks import RTDETRDetectionModel
from ultralytics.utils import nms

from detops.compat import provide

torchvision = pytest.importorskip("torchvision")


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("agnostic", [False, True])
def test_non_max_suppression_gives_the_same_detections(multi_label, agnostic):
    g = torch.Generator().manual_seed(0)
    prediction = torch.rand(2, 24, 3000, generator=g)
    prediction[:, :4] *= 300
    prediction[:, 4:] **= 4

    def run():
        # ultralytics skips images beyond its time limit.
        options = dict(multi_label=multi_label, agnostic=agnostic, max_time_img=1000)
        return nms.non_max_suppression(prediction.clone(), 0.5, 0.5, **options)

    theirs = run()
    with provide("ultralytics"):
        ours, ran = record_ops(run)
    assert "nms" in ran
    for a, b in zip(ours, theirs, strict=True):
        assert len(a) > 10 and torch.equal(a, b)


def test_torch_nms_gives_the_same_boxes():
    g = torch.Generator().manual_seed(0)
    corner = torch.rand(500, 2, generator=g) * 100
    boxes = torch.cat([corner, corner + 1 + torch.rand(500, 2, generator=g) * 40], 1)
    scores = torch.rand(500, generator=g)
    theirs = nms.TorchNMS.nms(boxes, scores, 0.5)
    with provide("ultralytics"):
        ours, ran = record_ops(lambda: nms.TorchNMS.nms(boxes, scores, 0.5))
    assert ran and torch.equal(ours, theirs)


@pytest.fixture(autouse=True)
def never_use_scipy(monkeypatch):
    """By default SciPy solves small matrices, because it is faster for them."""
    monkeypatch.setattr("detops.compat.assignment.MIN_COSTS", 0)


def test_matcher_gives_the_same_matches():
    from ultralytics.models.utils.ops import HungarianMatcher

    g = torch.Generator().manual_seed(0)
    boxes = torch.rand(3, 30, 4, generator=g) * 0.4 + 0.3
    scores = torch.randn(3, 30, 5, generator=g)
    counts = [4, 0, 40]
    gt_boxes = torch.rand(sum(counts), 4, generator=g) * 0.4 + 0.3
    gt_labels = torch.randint(5, (sum(counts),), generator=g)
    match = HungarianMatcher()

    def run():
        return match(boxes, scores, gt_boxes, gt_labels, counts)

    theirs = run()
    with provide("ultralytics"):
        ours, ran = record_ops(run)
    assert "linear_assignment" in ran
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_rt_detr_gives_the_same_detections():
    torch.manual_seed(0)
    model = RTDETRDetectionModel("rtdetr-resnet50.yaml", nc=5, verbose=False).eval()
    image = torch.rand(1, 3, 128, 128)

    def run():
        # In query order: in score order, rounding would swap close detections.
        with torch.no_grad():
            return model(image)[1][:2]

    theirs = run()
    with provide("ultralytics"):
        ours, ran = record_ops(run)
    assert "ms_deform_attn" in ran
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
