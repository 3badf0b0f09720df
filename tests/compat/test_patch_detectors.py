"""torchvision detectors inside and outside ``detops.patch_torchvision()``."""

from collections import OrderedDict

import pytest
import torch
from patched import random_boxes, record_ops
from torch import nn
from torchvision.models import detection
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator

import detops

pytestmark = pytest.mark.slow

SIZE = 128


class Body(nn.Module):
    """Returns feature maps of ``levels`` sizes, each half the size of the one before."""

    def __init__(self, levels, channels=16):
        super().__init__()
        self.out_channels = channels
        self.stem = nn.Conv2d(3, channels, 4, 4)
        self.layers = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, 2, 1) for _ in range(levels - 1)]
        )

    def forward(self, x):
        maps = [self.stem(x)]
        for layer in self.layers:
            maps.append(layer(maps[-1].relu()))
        return OrderedDict((str(i), x) for i, x in enumerate(maps))


def ssd(lite):
    anchors = DefaultBoxGenerator([[2], [2, 3]], scales=[0.1, 0.3, 0.6])
    counts = anchors.num_anchors_per_location()
    if lite:
        head = detection.ssdlite.SSDLiteHead([16, 16], counts, 5, nn.BatchNorm2d)
    else:
        head = detection.ssd.SSDHead([16, 16], counts, 5)
    model = detection.ssd.SSD(
        Body(2), anchors, (SIZE, SIZE), 5, head=head, score_thresh=0.1, detections_per_img=200
    )
    logit_layers = list(head.classification_head.module_list)
    return model, [layer[-1] for layer in logit_layers] if lite else logit_layers


def rcnn(kind):
    classes = 2 if kind is detection.KeypointRCNN else 5
    heads = {
        "box_head": detection.faster_rcnn.TwoMLPHead(16 * 49, 64),
        "box_predictor": detection.faster_rcnn.FastRCNNPredictor(64, classes),
    }
    if kind is detection.MaskRCNN:
        heads["mask_head"] = detection.mask_rcnn.MaskRCNNHeads(16, (16,), 1)
        heads["mask_predictor"] = detection.mask_rcnn.MaskRCNNPredictor(16, 16, classes)
    if kind is detection.KeypointRCNN:
        heads["keypoint_head"] = detection.keypoint_rcnn.KeypointRCNNHeads(16, (16,))
        heads["keypoint_predictor"] = detection.keypoint_rcnn.KeypointRCNNPredictor(16, 17)
    model = kind(
        Body(5), min_size=SIZE, max_size=SIZE, box_score_thresh=0.1, box_nms_thresh=0.7,
        box_detections_per_img=110, **heads,
    )  # fmt: skip
    return model, [model.roi_heads.box_predictor.cls_score]


def dense(kind):
    ratios = (1.0,) if kind is detection.FCOS else (0.5, 1.0, 2.0)
    anchors = AnchorGenerator(((8,), (16,), (32,), (64,), (128,)), (ratios,) * 5)
    head = None
    if kind is detection.RetinaNet:
        head = detection.retinanet.RetinaNetHead(32, anchors.num_anchors_per_location()[0], 5)
    model = kind(
        Body(5, 32), 5, anchor_generator=anchors, head=head, min_size=SIZE, max_size=SIZE,
        score_thresh=0.1, detections_per_img=200, nms_thresh=0.7,
    )  # fmt: skip
    return model, [model.head.classification_head.cls_logits]


DETECTORS = {
    "fasterrcnn": lambda: rcnn(detection.FasterRCNN),
    "maskrcnn": lambda: rcnn(detection.MaskRCNN),
    "keypointrcnn": lambda: rcnn(detection.KeypointRCNN),
    "retinanet": lambda: dense(detection.RetinaNet),
    "fcos": lambda: dense(detection.FCOS),
    "ssd": lambda: ssd(lite=False),
    "ssdlite": lambda: ssd(lite=True),
}
DENSE = ("retinanet", "fcos", "ssd", "ssdlite")


def detector(name):
    """Builds a small detector with widely spread logits, so that hundreds of detections survive."""
    model, logit_layers = DETECTORS[name]()

    def rescale(layer, _, logits):
        layer.weight.data *= 2 / logits.std()
        nn.init.zeros_(layer.bias)

    hooks = [layer.register_forward_hook(rescale) for layer in logit_layers]
    with torch.no_grad():
        model.eval()(images())
    for hook in hooks:
        hook.remove()
    return model


def images():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, *size, generator=generator) for size in ((SIZE, SIZE), (100, SIZE))]


def targets(name):
    found = []
    for image in images():
        boxes = random_boxes(7, 100)
        target = {"boxes": boxes, "labels": torch.randint(1, 5, (7,))}
        if name == "maskrcnn":
            target["masks"] = (torch.rand(7, *image.shape[1:]) > 0.5).byte()
        if name == "keypointrcnn":
            positions = boxes[:, None, :2] + torch.rand(7, 17, 2) * (
                boxes[:, None, 2:] - boxes[:, None, :2]
            )
            target["keypoints"] = torch.cat([positions, torch.ones(7, 17, 1)], 2)
            target["labels"] = torch.ones(7, dtype=torch.int64)
        found.append(target)
    return found


@pytest.mark.parametrize("name", DETECTORS)
def test_detections_are_unchanged_by_the_patch(name):
    model = detector(name).eval()
    with torch.no_grad():
        unpatched = model(images())
        with detops.patch_torchvision():
            patched, ran = record_ops(lambda: model(images()))
        after_restore, ran_when_restored = record_ops(lambda: model(images()))
    assert ran_when_restored == set()
    assert ran & {"nms", "batched_nms"}
    assert ("multiscale_roi_align_forward" in ran) == ("rcnn" in name)
    for ours, theirs, restored in zip(patched, unpatched, after_restore, strict=True):
        assert len(theirs["boxes"]) > 100
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.equal(restored[key], value)
            if name in DENSE or key == "labels":
                assert torch.equal(ours[key], value), key
            else:
                # RoIAlign sums in another order.
                torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DETECTORS)
def test_gradients_of_detections_are_unchanged_by_the_patch(name):
    model = detector(name).eval()
    image = images()[0].requires_grad_()

    def run():
        (found,) = model([image])
        differentiable = {key: value for key, value in found.items() if value.requires_grad}
        (gradient,) = torch.autograd.grad(sum(v.sum() for v in differentiable.values()), image)
        return differentiable.keys(), gradient

    output_keys, expected = run()
    with detops.patch_torchvision():
        patched_keys, gradient = run()
    assert patched_keys == output_keys and {"boxes", "scores"} <= output_keys
    assert ("masks" in output_keys) == (name == "maskrcnn")
    assert (gradient - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", DETECTORS)
def test_losses_and_gradients_are_unchanged_by_the_patch(name):
    model = detector(name).train()
    truth = targets(name)

    def step():
        torch.manual_seed(2)
        model.zero_grad()
        losses = model(images(), truth)
        sum(losses.values()).backward()
        return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    losses, gradients = step()
    with detops.patch_torchvision():
        (our_losses, our_gradients), ran = record_ops(step)
    assert ("box_iou_loss_backward" if name == "fcos" else "box_iou_forward") in ran
    assert ("sigmoid_focal_loss_backward" in ran) == (name in ("retinanet", "fcos"))
    assert ("multiscale_roi_align_backward" in ran) == ("rcnn" in name)
    torch.testing.assert_close(our_losses, losses, rtol=1e-5, atol=1e-6)
    assert our_gradients.keys() == gradients.keys()
    # Gradients that are zero except for rounding, e.g. of a bias before a normalisation.
    noise = 1e-6 * max(gradient.abs().max() for gradient in gradients.values())
    for key, gradient in gradients.items():
        bound = 1e-5 * gradient.abs().max() + noise
        assert (our_gradients[key] - gradient).abs().max() <= bound, key
