"""ultralytics with and without detops; test_compat_transformers.py runs this."""

import pytest
import torch
from patched import our_ops
from ultralytics.nn.tasks import RTDETRDetectionModel
from ultralytics.utils import nms

from detops.compat import provide

torchvision = pytest.importorskip("torchvision")


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("agnostic", [False, True])
def test_non_max_suppression(multi_label, agnostic):
    g = torch.Generator().manual_seed(0)
    prediction = torch.rand(2, 24, 3000, generator=g)
    prediction[:, :4] *= 300
    prediction[:, 4:] **= 4

    def run():
        # Beyond its time limit, ultralytics leaves images out.
        options = dict(multi_label=multi_label, agnostic=agnostic, max_time_img=1000)
        return nms.non_max_suppression(prediction.clone(), 0.5, 0.5, **options)

    theirs = run()
    with provide("ultralytics"):
        ours, ran = our_ops(run)
    assert "nms" in ran
    for a, b in zip(ours, theirs, strict=True):
        assert len(a) > 10 and torch.equal(a, b)


def test_its_own_nms():
    g = torch.Generator().manual_seed(0)
    corner = torch.rand(500, 2, generator=g) * 100
    boxes = torch.cat([corner, corner + 1 + torch.rand(500, 2, generator=g) * 40], 1)
    scores = torch.rand(500, generator=g)
    theirs = nms.TorchNMS.nms(boxes, scores, 0.5)
    with provide("ultralytics"):
        ours, ran = our_ops(lambda: nms.TorchNMS.nms(boxes, scores, 0.5))
    assert ran and torch.equal(ours, theirs)


def test_rt_detr():
    torch.manual_seed(0)
    model = RTDETRDetectionModel("rtdetr-resnet50.yaml", nc=5, verbose=False).eval()
    image = torch.rand(1, 3, 128, 128)

    def run():
        with torch.no_grad():
            return model(image)[0]

    theirs = run()
    with provide("ultralytics"):
        ours, ran = our_ops(run)
    assert "ms_deform_attn_forward" in ran
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
