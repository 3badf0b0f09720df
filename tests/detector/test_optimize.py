"""Optimized detectors give the detections of the original detectors."""

import copy
import pickle
import warnings

import pytest
import torch
from small_detectors import detectors, noise_images, small_detector
from torch import nn
from torch.nn import functional as F
from torchvision.models import detection
from torchvision.ops import MultiScaleRoIAlign

import detops
from detops import _C
from detops.cli.options import TREE_CROWNS
from detops.data import CocoDetection
from detops.engine import Detector
from detops.modeling.backbone.norm import FrozenBatchNorm2d
from detops.packed import PackedConv2d, PackedDeconv2d, PackedLinear

SCORES, PIXELS = 1e-4, 0.05


def find_match(found, expected, i, remaining):
    """Returns which of the remaining detections matches the expected one, or None."""
    for j in remaining:
        boxes_match = (found["boxes"][j] - expected["boxes"][i]).abs().max() < PIXELS
        scores_match = (found["scores"][j] - expected["scores"][i]).abs() < SCORES
        if not (boxes_match and scores_match and found["labels"][j] == expected["labels"][i]):
            continue
        if "masks" in expected:
            a, b = found["masks"][j] > 0.5, expected["masks"][i] > 0.5
            if (a & b).sum() < 0.99 * (a | b).sum():
                continue
        if "keypoints" in expected:
            if (found["keypoints"][j] - expected["keypoints"][i]).abs().max() > 0.1:
                continue
        return j
    return None


def count_unmatched(found, expected):
    """Counts detections without a partner; scores that differ by rounding may swap."""
    assert set(found) == set(expected)
    remaining, unmatched = list(range(len(found["boxes"]))), 0
    for i in range(len(expected["boxes"])):
        j = find_match(found, expected, i, remaining)
        unmatched += j is None
        if j is not None:
            remaining.remove(j)
    return unmatched + len(remaining)


NAMES = detectors(
    "faster_rcnn_mdconv_R_50_FPN_1x",
    "keypoint_rcnn_R_50_FPN_1x",
    "mask_rcnn_R_50_C4_1x",
    "mask_rcnn_R_50_FPN_1x",
    "retinanet_R_50_FPN_1x",
)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_optimized_detectors_match_the_originals(name, exact):
    model = small_detector(name)
    before = copy.deepcopy(model.state_dict())
    optimized = detops.optimize(model, exact=exact)
    with torch.no_grad():
        *images, blank = noise_images((64, 80), (70, 61))
        for image in images:
            assert count_unmatched(optimized([image])[0], model([image])[0]) == 0
        assert len(optimized([blank])[0]["boxes"]) == 0
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
    )


MODELS = (
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "maskrcnn_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "retinanet_resnet50_fpn_v2",
    "fcos_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)
GENERATOR = torch.Generator().manual_seed(2)
IMAGES = [torch.rand(3, *size, generator=GENERATOR) for size in ((160, 200), (190, 160))]


def torchvision_detector(name):
    """Returns a detector of small images, with few proposals and narrow heads."""
    options = {} if name.startswith("ssd") or "320" in name else {"min_size": 160}
    if "rcnn" in name and "keypointrcnn" not in name:  # otherwise it would find too few persons
        options["rpn_post_nms_top_n_test"] = 200
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    if "maskrcnn" in name:
        model.roi_heads.mask_head = detection.mask_rcnn.MaskRCNNHeads(256, (32,), 1)
        model.roi_heads.mask_predictor = detection.mask_rcnn.MaskRCNNPredictor(32, 32, 91)
    if "keypointrcnn" in name:
        model.roi_heads.keypoint_head = detection.keypoint_rcnn.KeypointRCNNHeads(256, (32,))
        model.roi_heads.keypoint_predictor = detection.keypoint_rcnn.KeypointRCNNPredictor(32, 17)
    return model.eval()


@torch.no_grad()
def rescale_weights(model):
    """Rescales random weights so that scores differ and boxes have moderate sizes."""
    for name, module in model.named_modules():
        if name.endswith("bn3"):  # without statistics, each residual block adds magnitude
            module.weight.fill_(0.2)
    layers = [m for n, m in model.named_modules() if n.endswith(("cls_score", "cls_logits"))]
    layers = [each for m in layers for each in (m if isinstance(m, nn.ModuleList) else [m])]
    if hasattr(model, "head") and hasattr(model.head.classification_head, "module_list"):
        layers = list(model.head.classification_head.module_list)

    def scale(layer, _, logits):
        layer = layer[-1] if isinstance(layer, nn.Sequential) else layer
        layer.weight *= 2 / logits.std()
        nn.init.zeros_(layer.bias)

    hooks = [layer.register_forward_hook(scale) for layer in layers]
    model([IMAGES[0]])
    for hook in hooks:
        hook.remove()
    return model


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MODELS)
def test_optimized_torchvision_detectors_match_the_originals(name):
    model = rescale_weights(torchvision_detector(name))
    exact, optimized = detops.optimize(model, exact=True), detops.optimize(model)
    assert any(isinstance(m, PackedConv2d) for m in optimized.modules())
    batch = torch.stack([F.interpolate(IMAGES[0][None], (320, 384))[0]])
    with torch.no_grad():
        for ours, tolerance in ((exact, 2e-5), (optimized, 1e-4)):
            for a, b in zip(
                feature_maps_and_outputs(ours, batch),
                feature_maps_and_outputs(model, batch),
                strict=True,
            ):
                assert (a - b).abs().max() < tolerance * b.abs().max()
        # Random weights amplify rounding errors: boxes at a limit may appear or vanish.
        for found, expected in zip(exact(IMAGES), model(IMAGES), strict=True):
            assert len(expected["boxes"]) > 25
            if expected["scores"].std() > 0.01:  # otherwise any order is valid
                assert count_unmatched(found, expected) <= 0.04 * len(expected["boxes"])


def feature_maps_and_outputs(model, batch):
    """Returns the feature maps, and the head outputs for them."""
    features = list(model.backbone(batch).values())
    heads = model.rpn.head(features) if hasattr(model, "rpn") else model.head(features).values()
    flat = [each if isinstance(each, list) else [each] for each in heads]
    return [*features, *(each for group in flat for each in group)]


def test_optimized_trained_detector_matches_on_photographs():
    detector = Detector.from_checkpoint(TREE_CROWNS / "weights.pt", "cpu")
    optimized = detops.optimize(detector.model)
    kinds = {type(m) for m in optimized.modules()}
    assert {PackedConv2d, PackedLinear} <= kinds and not kinds & {nn.Linear, FrozenBatchNorm2d}
    dataset = CocoDetection(TREE_CROWNS / "val.json")
    with torch.no_grad():
        for photograph, _ in dataset:
            image = photograph / 255
            (expected,), (found,) = detector.model([image]), optimized([image])
            assert len(expected["boxes"]) > 10 and count_unmatched(found, expected) == 0


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (0, 5, 3, 4), (1, 5, 1, 1)])
def test_packed_deconv2d_equals_conv_transpose2d(shape):
    deconv = nn.ConvTranspose2d(5, 7, 2, stride=2)
    x = torch.randn(shape)
    for relu in (False, True):
        with torch.no_grad():
            found, expected = PackedDeconv2d(deconv, relu=relu)(x), deconv(x)
        expected = expected.relu() if relu else expected
        torch.testing.assert_close(found, expected, check_stride=False)


def test_packed_linear_accepts_feature_maps():
    linear = nn.Linear(3 * 4 * 5, 6)
    maps = torch.randn(9, 3, 4, 5)
    for x in (maps, maps.contiguous(memory_format=torch.channels_last), maps[:0]):
        with torch.no_grad():
            found = PackedLinear(linear, (3, 4, 5), relu=True)(x)
            torch.testing.assert_close(found, linear(x.flatten(1)).relu())


def test_optimized_detectors_can_be_copied_and_pickled():
    model = small_detector("mask_rcnn_R_50_FPN_1x")
    optimized = detops.optimize(model)
    image = noise_images((64, 80))[0]
    with torch.no_grad():
        expected = optimized([image])[0]
        for other in (copy.deepcopy(optimized), pickle.loads(pickle.dumps(optimized))):
            for key, value in other([image])[0].items():
                assert torch.equal(value, expected[key])


def test_arena_reuses_and_releases_memory():
    before = _C.use_arena(True)
    try:
        x, weight = torch.randn(1, 3, 512, 512), torch.randn(8, 3, 1, 1)
        packed = _C.pack_conv2d_weight(weight)
        call = (x, packed, None, None, 8, [1, 1], [1, 1], [0, 0], [1, 1])
        first = _C.packed_conv2d(*call)
        address, (reserved, free) = first.data_ptr(), _C.arena_size()
        assert reserved - free >= first.nbytes and address % 64 == 0
        expected = first.clone()
        second = _C.packed_conv2d(*call)
        assert second.data_ptr() != address
        del first
        third = _C.packed_conv2d(*call)
        assert third.data_ptr() == address and torch.equal(third, expected)
        assert third.requires_grad_().mul(2).sum().item() == pytest.approx(
            2 * expected.sum().item(), rel=1e-4
        )
        del second, third
        assert _C.arena_size()[0] >= reserved
        detops.release_memory()
        assert _C.arena_size() == (0, 0)
    finally:
        _C.use_arena(before)


def test_calls_restore_the_thread_state():
    """The thread state is restored, also after errors. Results outlive the model."""
    model = small_detector("mask_rcnn_R_50_FPN_1x")
    optimized = detops.optimize(model)
    with torch.no_grad():
        found = optimized([noise_images((64, 80))[0]])[0]
    boxes = found["boxes"].clone()
    with pytest.raises(ValueError):
        optimized([torch.zeros(1, 5, 5)])
    assert _C.use_arena(False) is False
    del optimized
    detops.release_memory()
    assert torch.equal(found["boxes"], boxes)


def test_layers_with_hooks_are_not_replaced():
    model = copy.deepcopy(small_detector("retinanet_R_50_FPN_1x"))
    calls = []
    model.rpn.head.cls_logits.register_forward_hook(lambda *_: calls.append(1))
    optimized = detops.optimize(model)
    with torch.no_grad():
        optimized([noise_images((64, 80))[0]])
    assert calls and type(optimized.rpn.head.cls_logits) is nn.Conv2d


def test_blocks_with_hooks_are_not_replaced():
    original = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=64)
    names = (
        "backbone.body.layer1.0",
        "backbone.fpn",
        "rpn.head",
        "roi_heads.box_roi_pool",
        "roi_heads.mask_predictor",
    )
    without_hooks = detops.optimize(original)
    for name in names:
        original.get_submodule(name).register_forward_hook(lambda *_: None)
    optimized = detops.optimize(original)
    for name in names:
        kind = type(original.get_submodule(name))
        assert type(optimized.get_submodule(name)) is kind
        assert type(without_hooks.get_submodule(name)) is not kind
    assert type(optimized.backbone.body.layer1[1]) is type(without_hooks.backbone.body.layer1[1])
    assert type(optimized.backbone.body.layer1[1]) is not type(optimized.backbone.body.layer1[0])
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(
            optimized.backbone(x).values(), original.eval().backbone(x).values(), strict=True
        ):
            assert (a - b).abs().max() < 1e-4 * b.abs().max()


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(256, 12, 3, padding=1), nn.Conv2d(256, 12, 1, bias=False)]
)
def test_unusual_proposal_heads_are_not_replaced(layer):
    original = detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).eval()
    original.rpn.head.bbox_pred = layer
    state = torch.get_rng_state()
    optimized = detops.optimize(original)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(optimized.rpn.head) is type(original.rpn.head)
    x = torch.randn(1, 256, 9, 11)
    with torch.no_grad():
        for a, b in zip(optimized.rpn.head([x]), original.rpn.head([x]), strict=True):
            assert (a[0] - b[0]).abs().max() < 1e-4 * b[0].abs().max()


def test_optimized_poolers_match_multiscale_roi_align():
    """Levels may be consecutive powers of two or not; consecutive ones keep the maps' layout."""
    heads = detops.optimize(detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None))
    maps = {
        str(k): torch.randn(2, 5, 64 >> k, 96 >> k).to(memory_format=torch.channels_last)
        for k in range(4)
    }
    corners = torch.rand(2, 40, 2, 2) * torch.tensor([384.0, 256])
    boxes = list(torch.cat((corners.amin(2), corners.amax(2)), 2))
    shapes = [(250, 384), (256, 300)]
    for ours in (heads.roi_heads.box_roi_pool, heads.roi_heads.mask_roi_pool):
        for names in ("0123", "12", "2", "02"):
            settings = ours.pooler.output_size, ours.pooler.sampling_ratio
            theirs = MultiScaleRoIAlign(list(names), *settings, canonical_scale=64)
            expected = theirs(maps, boxes, shapes)
            found = type(ours)(theirs)(maps, boxes, shapes)
            assert (found - expected).abs().max() < 1e-5
            if names != "02":
                assert found.is_contiguous(memory_format=torch.channels_last)
            empty = [torch.zeros(0, 4)] * 2
            assert type(ours)(theirs)(maps, empty, shapes).shape == (0, *expected.shape[1:])


def test_baseline_isa_keeps_pytorch_convolutions(monkeypatch):
    model = small_detector("mask_rcnn_R_50_FPN_1x")
    _C.set_cpu_isa("baseline")
    try:
        optimized = detops.optimize(model)
        assert not any(m.packed for m in optimized.modules() if isinstance(m, PackedConv2d))
        with torch.no_grad():
            x = torch.randn(1, 3, 64, 96)
            for a, b in zip(optimized.backbone(x), model.backbone(x), strict=True):
                assert (a - b).abs().max() < 1e-5 * b.abs().max()
            assert len(optimized([noise_images((64, 80))[0]])) == 1
    finally:
        _C.set_cpu_isa("auto")


def test_optimize_rejects_other_models_training_and_devices():
    with pytest.raises(
        TypeError, match="must be a detector of detops or of torchvision, got torch"
    ):
        detops.optimize(nn.Linear(2, 2))
    model = small_detector("retinanet_R_50_FPN_1x")
    optimized, image = detops.optimize(model), noise_images((64, 80))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            RuntimeError, match="the detector must be in eval mode, got one in training mode"
        ):
            optimized.train()([image])
    assert len(optimized.eval()([image])) == 1
    with pytest.raises(ValueError, match="must be on the CPU, got meta"):
        detops.optimize(copy.deepcopy(model).to("meta"))
