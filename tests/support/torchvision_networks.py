"""torchvision detectors with random weights that find hundreds of objects."""

from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision.models import detection, get_model

from detops.engine.weights_torchvision import cached_file, newest_weights

SIZES = {"min_size": 128, "max_size": 192}
CONFIGS = {
    "fasterrcnn": "torchvision_faster_rcnn_R_50_FPN",
    "maskrcnn": "torchvision_mask_rcnn_R_50_FPN",
    "keypointrcnn": "torchvision_keypoint_rcnn_R_50_FPN",
    "retinanet": "torchvision_retinanet_R_50_FPN",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Provides an empty torch.hub cache; downloads fail."""

    def fail(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))


def cache_path(name):
    """Returns the torch.hub cache file for the newest weights of a network."""
    file = cached_file(newest_weights(name))
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def build(kind, **options):
    """Returns an untrained torchvision network for inference."""
    torch.manual_seed(0)
    make = getattr(detection, f"{kind}_resnet50_fpn")
    return make(weights=None, weights_backbone=None, **(SIZES | options)).eval()


def images():
    """Returns noise of several grain sizes, so that all positions differ."""
    generator = torch.Generator().manual_seed(1)
    result = []
    for height, width in ((133, 187), (211, 148)):
        image = torch.zeros(1, 3, height, width)
        for grain in (1, 4, 16, 40):
            size = (height // grain + 1, width // grain + 1)
            noise = torch.rand(1, 3, *size, generator=generator)
            image += nn.functional.interpolate(noise, (height, width), mode="bilinear") / 4
        result.append(image[0])
    return result


# Target spread of predictor outputs, later stages last.
TARGET_STD = (
    {"rpn.head.cls_logits": 1.5, "rpn.head.bbox_pred": 0.3},
    {"roi_heads.box_predictor.cls_score": 3.0, "roi_heads.box_predictor.bbox_pred": 1.0},
    {"roi_heads.mask_predictor.mask_fcn_logits": 3.0},
    {"roi_heads.keypoint_predictor.kps_score_lowres": 3.0},
    {"head.classification_head.cls_logits": 1.5, "head.regression_head.bbox_reg": 0.3},
)


@torch.no_grad()
def calibrate(net, sample_images, class_0=False):
    """Sets batch norm statistics from the images, and spreads the outputs of predictors.

    RetinaNet finds objects of class 0 only with ``class_0``.
    """
    generator = torch.Generator().manual_seed(2)
    norms = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for name, norm in norms.items():
        norm.momentum = None
        # Shortcuts outweigh the residual branches, as in a trained network: otherwise rounding
        # differences grow from block to block.
        norm.weight.uniform_(0.5, 1.5, generator=generator).mul_(0.2 if "bn3" in name else 1)
        norm.bias.normal_(0, 0.2, generator=generator)
        norm.train()
    features = net.backbone(net.transform(sample_images)[0].tensors)
    for norm in norms.values():
        norm.eval()
    net.backbone.forward = lambda batch: features
    # A few proposals and detections suffice to measure the spread.
    saved_attributes = {}
    if hasattr(net, "roi_heads"):
        saved_attributes = {net.rpn: dict(vars(net.rpn)), net.roi_heads: dict(vars(net.roi_heads))}
        net.rpn._post_nms_top_n = {"testing": 100}
        net.roi_heads.detections_per_img = 4
    for layers in TARGET_STD:
        outputs_by_layer = {
            n: [] for n in layers if n.rpartition(".")[0] in dict(net.named_modules())
        }
        hooks = [
            net.get_submodule(name).register_forward_hook(
                lambda layer, inputs, output, found=found: found.append(
                    output.movedim(1, -1).flatten(0, -2)
                )
            )
            for name, found in outputs_by_layer.items()
        ]
        if outputs_by_layer:
            net(sample_images)
        for hook in hooks:
            hook.remove()
        for name, found in outputs_by_layer.items():
            layer = net.get_submodule(name)
            outputs = torch.cat(found)
            mean = outputs.mean(dim=0)
            scale = layers[name] / (outputs - mean).std()
            layer.weight *= scale
            # Centre each channel, so that none exceeds the others everywhere.
            layer.bias.sub_(mean).mul_(scale)
    del net.backbone.forward
    for module, attributes in saved_attributes.items():
        vars(module).update(attributes)
    if hasattr(net, "head"):
        logits = net.head.classification_head.cls_logits
        logits.bias -= 4
        if not class_0:
            logits.bias[:: net.head.classification_head.num_classes] = -30
    return net


def cache_random_weights(name, folder, monkeypatch):
    """Saves random weights into the torch.hub cache and returns their model."""
    monkeypatch.setenv("TORCH_HOME", str(folder))
    torch.manual_seed(0)
    model = get_model(name, weights=None, weights_backbone=None, num_classes=91).eval()
    if hasattr(model, "roi_heads"):
        # Spread the logits, so that some detections are confident.
        torch.nn.init.normal_(model.roi_heads.box_predictor.cls_score.weight, std=0.2)
    torch.save(model.state_dict(), cache_path(name))
    return model
