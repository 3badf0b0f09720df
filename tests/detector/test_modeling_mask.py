import math

import pytest
import torch
from torch.nn import functional as F
from torchvision.models.detection import roi_heads as torchvision_heads

import detops
from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.backbone.norm import group_norm
from detops.modeling.paste import paste_masks
from detops.modeling.poolers import Pooler
from detops.modeling.roi_heads.mask import (
    MaskHead,
    MaskRCNNC4Predictor,
    MaskRCNNConv1x1Predictor,
    MaskRCNNFPNFeatureExtractor,
)
from detops.modeling.roi_heads.mask.loss import crop_masks, mask_loss

pytestmark = pytest.mark.slow

SMALL = [
    "MODEL.MASK_ON", True, "MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR", "MaskRCNNFPNFeatureExtractor",
    "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_MASK_HEAD.POOLER_SCALES", (0.25, 0.125, 0.0625),
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO", 2,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (8, 16), "MODEL.ROI_MASK_HEAD.RESOLUTION", 28,
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
    "INPUT.MIN_SIZE_TRAIN", (64, 80), "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TRAIN", 96,
]  # fmt: skip


@pytest.fixture(autouse=True)
def chdir_to_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def small_detector(*overrides):
    torch.manual_seed(0)
    return build_detection_model(load_config("configs/tree_crowns.yaml", [*SMALL, *overrides]))


def disc(height, width, x, y, radius):
    rows, columns = torch.arange(height) + 0.5, torch.arange(width) + 0.5
    return (rows[:, None] - y) ** 2 + (columns - x) ** 2 <= radius**2


def example():
    images = [torch.rand(3, 60, 70) * 0.3, torch.rand(3, 53, 51) * 0.3]
    discs = [[(20, 20, 12), (50, 40, 15)], [(25, 28, 17)]]
    targets = []
    for image, image_discs in zip(images, discs, strict=True):
        masks = torch.stack([disc(*image.shape[1:], *d) for d in image_discs])
        for mask in masks:
            image[:, mask] += 0.6
        x, y, radius = torch.tensor(image_discs).float().unbind(1)
        boxes = torch.stack([x - radius, y - radius, x + radius, y + radius], 1)
        labels = torch.ones(len(image_discs), dtype=torch.int64)
        targets.append({"boxes": boxes, "labels": labels, "masks": masks})
    return images, targets


def slow_crop(mask, box, size):
    """Crops a mask by bilinear samples, about one per pixel, in a loop."""
    height, width = mask.shape
    x1, y1, x2, y2 = box
    per_x, per_y = math.ceil((x2 - x1) / size), math.ceil((y2 - y1) / size)

    def pixel(y, x):
        return float(mask[min(max(y, 0), height - 1)][min(max(x, 0), width - 1)])

    result = torch.zeros(size, size)
    for i in range(size):
        for j in range(size):
            total = 0.0
            for k in range(per_y):
                for m in range(per_x):
                    y = y1 + (y2 - y1) * (i + (k + 0.5) / per_y) / size - 0.5
                    x = x1 + (x2 - x1) * (j + (m + 0.5) / per_x) / size - 0.5
                    top, left = math.floor(y), math.floor(x)
                    dy, dx = y - top, x - left
                    total += (1 - dy) * (1 - dx) * pixel(top, left) + (1 - dy) * dx * pixel(
                        top, left + 1
                    )
                    total += dy * (1 - dx) * pixel(top + 1, left) + dy * dx * pixel(
                        top + 1, left + 1
                    )
            result[i, j] = total / (per_x * per_y)
    return result


BOXES = torch.tensor([[3.2, 4.1, 20.7, 19.9], [0.0, 0, 23, 21], [15.5, 2.25, 18, 20], [6, 6, 7, 8]])


def test_mask_crops_equal_a_slow_loop():
    masks = torch.rand(3, 21, 23) > 0.4
    truth = torch.tensor([2, 0, 2, 1])
    ours = crop_masks(masks, truth, BOXES, 5)
    for crop, index, box in zip(ours, truth, BOXES, strict=True):
        torch.testing.assert_close(crop, slow_crop(masks[index], box, 5))
    assert torch.equal(crop_masks(masks.byte() * 255, truth, BOXES, 5), ours)


def test_cropped_cell_is_its_covered_fraction():
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[0, 2:5, 1:6] = True
    box, truth = torch.tensor([[0.0, 0, 8, 8]]), torch.tensor([0])
    fractions = F.avg_pool2d(mask[None].float(), 2)[0]
    torch.testing.assert_close(crop_masks(mask, truth, box, 4), fractions)


def test_mask_loss_and_gradients_equal_a_slow_loop():
    """The predictor computes logits of every class, but only one counts."""
    targets = [{"masks": torch.rand(2, 21, 23) > 0.5}, {"masks": torch.rand(1, 30, 19) > 0.5}]
    sizes = [(42, 46), (15, 38)]  # the second image has another aspect ratio in the batch
    scales = [torch.tensor([2.0, 2, 2, 2]), torch.tensor([2, 0.5, 2, 0.5])]
    boxes = [BOXES[:2], BOXES[2:3]]
    truth, labels = [[1, 0], [0]], [[2, 1], [3]]
    regions = [
        {"boxes": b * s, "truth": torch.tensor(t), "labels": torch.tensor(n)}
        for b, s, t, n in zip(boxes, scales, truth, labels, strict=True)
    ]
    predictor = MaskRCNNConv1x1Predictor(6, 4)
    features = torch.randn(3, 6, 5, 5).contiguous(memory_format=torch.channels_last)
    features.requires_grad_()
    inputs = [features, *predictor.parameters()]

    logits = predictor(features, torch.cat([r["labels"] for r in regions]))
    loss = mask_loss(logits, regions, sizes, targets)
    layer = predictor.mask_fcn_logits
    all_logits = F.conv2d(features, layer.weight, layer.bias)
    expected, k = 0, 0
    for i in range(2):
        for box, t, label in zip(boxes[i], truth[i], labels[i], strict=True):
            target_mask = slow_crop(targets[i]["masks"][t], box, 5)
            p = all_logits[k, label].sigmoid()
            expected = (
                expected - (target_mask * p.log() + (1 - target_mask) * (1 - p).log()).mean() / 3
            )
            k += 1
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def head(norm=None, **kwargs):
    extractor = MaskRCNNFPNFeatureExtractor(
        in_channels=4, pooler=Pooler(7, [0.25, 0.125], 2), layers=[8, 6], norm=norm, **kwargs
    )
    return MaskHead(feature_extractor=extractor, predictor=MaskRCNNC4Predictor(6, 3, 5))


def norm(channels):
    return group_norm(channels, 2, -1, 1e-5)


def empty_regions(count):
    return [
        {
            "boxes": torch.zeros(0, 4),
            "labels": torch.zeros(0, dtype=torch.int64),
            "truth": torch.zeros(0, dtype=torch.int64),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("norm", [None, norm])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("objects", [0, 2])
def test_loss_without_positives_is_0_with_gradients(norm, autocast, objects):
    """Every parameter gets a gradient: parallel training synchronises each of them."""
    mask_head = head(norm).train()
    features = [torch.rand(2, 4, s, s).to(memory_format=torch.channels_last) for s in (16, 8)]
    target = {"masks": torch.zeros(objects, 64, 64, dtype=torch.bool)}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _, losses = mask_head(features, empty_regions(2), [(64, 64)] * 2, [target] * 2)
    assert losses["loss_mask"] == 0
    losses["loss_mask"].backward()
    for name, parameter in mask_head.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_no_detections_give_empty_masks():
    found, losses = head().eval()([torch.rand(1, 4, 8, 8)] * 2, empty_regions(1), [(32, 32)])
    assert found[0]["masks"].shape == (0, 1, 14, 14) and losses == {}
    assert paste_masks(found[0]["masks"], found[0]["boxes"], (5, 9), 0.5).shape == (0, 1, 5, 9)


def test_mask_head_returns_the_probabilities_of_the_label():
    mask_head = head(dilation=2).eval()
    features = [torch.rand(2, 4, s, s) for s in (16, 8)]
    regions = [{"boxes": b, "labels": torch.tensor([1, 2])} for b in BOXES.split(2)]
    found, _ = mask_head(features, regions, [(64, 64)] * 2)
    x = mask_head.feature_extractor.pooler(features, [r["boxes"] for r in regions])
    for layer in (mask_head.feature_extractor.mask_fcn1, mask_head.feature_extractor.mask_fcn2):
        assert layer.dilation == (2, 2)
        x = F.relu(layer(x))
    x = F.relu(mask_head.predictor.conv5_mask(x))
    layer = mask_head.predictor.mask_fcn_logits
    all_probabilities = F.conv2d(x, layer.weight, layer.bias).sigmoid()
    for k, (i, label) in enumerate([(0, 1), (0, 2), (1, 1), (1, 2)]):
        torch.testing.assert_close(found[i]["masks"][k % 2, 0], all_probabilities[k, label])
    assert set(regions[0]) == {"boxes", "labels"}


def test_pasted_masks_match_torchvision():
    corner = torch.rand(60, 2) * 90 - 15
    opposite = corner + 0.5 + torch.rand(60, 2) ** 3 * 90
    boxes = torch.cat([corner, opposite.clamp(min=2)], 1)  # torchvision fails outside the image
    masks = torch.rand(60, 1, 28, 28)
    theirs = torchvision_heads.paste_masks_in_image(masks, boxes, (80, 97))
    clear = (theirs - 0.5).abs() > 1e-5
    ours = paste_masks(masks, boxes, (80, 97), 0.5)
    assert ours.dtype == torch.bool and ours.shape == theirs.shape
    assert clear.float().mean() > 0.999 and ours.any(-1).any(-1).all()
    assert torch.equal(ours[clear], (theirs > 0.5)[clear])


def test_pasting_a_crop_restores_the_mask():
    mask = disc(90, 110, 52, 41, 31)[None]
    box = torch.tensor([[20.3, 9.1, 84.2, 73.4]])
    crop = crop_masks(mask, torch.tensor([0]), box, 28).unsqueeze(1)
    exact = detops.paste_masks_in_image(crop, box, (90, 110))
    pasted = paste_masks(crop, box, (90, 110), 0.5)[0]
    for other, min_iou in ((exact, 0.99), (pasted, 0.96)):
        assert (mask & other).sum() / (mask | other).sum() > min_iou


def test_mask_detector_trains_and_detects():
    model = small_detector("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    images, targets = example()
    for autocast in (False, True):
        model.train().zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = model(images, targets)
        assert set(losses) == {
            "loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask"
        }  # fmt: skip
        assert losses["loss_mask"].dtype == torch.float32 and losses["loss_mask"] > 0
        losses["loss_mask"].backward()
        for name, parameter in model.roi_heads.mask.named_parameters():
            assert parameter.grad.isfinite().all() and parameter.grad.any(), name
        assert model.backbone.body.stem.conv1.weight.grad.any()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = model.eval()(images)
        for detection, image in zip(found, images, strict=True):
            count = len(detection["boxes"])
            assert count and detection["masks"].dtype == torch.bool
            assert detection["masks"].shape == (count, 1, *image.shape[1:])
    empty = small_detector("MODEL.ROI_HEADS.SCORE_THRESH", 1.0).eval()(images)
    assert [d["masks"].shape for d in empty] == [(0, 1, 60, 70), (0, 1, 53, 51)]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("dilation", [1, 2])
def test_mask_head_may_share_the_fifth_stage(share, dilation):
    overrides = SMALL[SMALL.index("MODEL.RESNETS.STEM_OUT_CHANNELS") :] + [
        "MODEL.ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", share,
        "MODEL.RESNETS.RES5_DILATION", dilation, "MODEL.ROI_MASK_HEAD.RESOLUTION", 14 * dilation,
        "MODEL.RESNETS.RES2_OUT_CHANNELS", 8, "MODEL.RESNETS.WIDTH_PER_GROUP", 4,
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 32, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 16,
        "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
    ]  # fmt: skip
    torch.manual_seed(0)
    model = build_detection_model(load_config("configs/mask_rcnn_R_50_C4_1x.yaml", overrides))
    box, mask = model.roi_heads.box, model.roi_heads.mask
    assert (mask.feature_extractor is box.feature_extractor) == share
    calls = []
    box.feature_extractor.register_forward_hook(lambda *_: calls.append(1))
    images, targets = example()
    model.train()(images, targets)["loss_mask"].backward()
    assert len(calls) == 1
    for name, parameter in mask.named_parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any(), name
    # Without sharing, the mask loss gives the box head no gradient.
    assert all((p.grad is not None) == share for p in box.feature_extractor.parameters())
    with torch.no_grad():
        found = model.eval()(images)
    assert len(calls) == (3 if share else 2)
    for detection, image in zip(found, images, strict=True):
        assert detection["masks"].shape == (len(detection["boxes"]), 1, *image.shape[1:])
        assert len(detection["boxes"])


@pytest.mark.parametrize("size", [(3, 1, 1), (3, 5, 90)])
def test_tiny_images_without_objects_train_and_detect(size):
    model = small_detector("INPUT.MIN_SIZE_TRAIN", "(0,)", "INPUT.MIN_SIZE_TEST", 0)
    target = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "masks": torch.zeros(0, *size[1:], dtype=torch.uint8),
    }
    losses = model.train()([torch.rand(size)], [target])
    assert losses["loss_mask"] == 0
    sum(losses.values()).backward()
    assert all(p.grad is not None for p in model.parameters())
    found = model.eval()([torch.rand(size)])[0]
    assert found["masks"].shape == (len(found["boxes"]), 1, *size[1:])


def test_training_learns_masks():
    model = small_detector("INPUT.MIN_SIZE_TRAIN", (64,)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    images, targets = example()
    for _ in range(60):
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(images)
    for detection, target in zip(found, targets, strict=True):
        for mask in target["masks"]:
            intersection = (detection["masks"][:, 0] & mask).sum((1, 2))
            iou = intersection / (detection["masks"][:, 0] | mask).sum((1, 2))
            assert iou[detection["scores"] > 0.5].max() > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {"masks": m[:1]}, r"expected bool or uint8 \[2, 60, 70\], got torch.bool \[1,"),
        (lambda m: {"masks": m[:, :9]}, r"targets\[0\]\['masks'\]: expected bool or uint8"),
        (lambda m: {"masks": m.float()}, "got torch.float32"),
        (lambda m: {"masks": None}, r"targets\[0\]: expected a tensor 'masks'"),
    ],
)
def test_invalid_mask_targets_are_rejected(change, message):
    images, targets = example()
    targets[0] |= change(targets[0]["masks"])
    with pytest.raises(ValueError, match=message):
        small_detector().train()(images, targets)


def test_rpn_only_network_rejects_masks():
    with pytest.raises(ConfigError, match="MODEL.MASK_ON: expected False with MODEL.RPN_ONLY"):
        small_detector("MODEL.RPN_ONLY", True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["PREDICTOR", "x"], "unknown MODEL.ROI_MASK_HEAD.PREDICTOR 'x'; known: MaskRCNNC4Pred"),
        (["FEATURE_EXTRACTOR", "x"], "unknown MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR 'x'"),
        (["RESOLUTION", 14],
         "MODEL.ROI_MASK_HEAD.RESOLUTION: expected 28 .feature maps of 14, times 2 in "),
        (["CONV_LAYERS", []], "MODEL.ROI_MASK_HEAD.CONV_LAYERS: expected at least one"),
        (["POOLER_SCALES", (1.0,) * 5], "MODEL.ROI_MASK_HEAD.POOLER_SCALES: expected 1 to 3"),
        (["SHARE_BOX_FEATURE_EXTRACTOR", True],
         "ROI_MASK_HEAD.SHARE_BOX_FEATURE_EXTRACTOR: expected False, because FPN2MLP"),
    ],
)  # fmt: skip
def test_invalid_mask_configs_are_rejected(overrides, message):
    with pytest.raises(ConfigError, match=message):
        small_detector(f"MODEL.ROI_MASK_HEAD.{overrides[0]}", overrides[1])
