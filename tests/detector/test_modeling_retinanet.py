"""RetinaNet, compared with torchvision and with slow, obvious versions."""

from types import SimpleNamespace

import pytest
import torch
from test_modeling_detector import chdir_to_root, example  # noqa: F401
from torchvision.models.detection import retinanet as theirs
from torchvision.models.detection._utils import BoxCoder as TorchvisionCoder
from torchvision.models.detection.anchor_utils import AnchorGenerator as TorchvisionAnchors
from torchvision.models.detection.image_list import ImageList as TorchvisionImageList
from torchvision.ops import box_iou
from torchvision.ops import sigmoid_focal_loss as slow_focal_loss

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.matcher import Matcher
from detops.modeling.rpn import AnchorGenerator
from detops.modeling.rpn.retinanet import RetinaNetHead
from detops.modeling.rpn.retinanet.inference import RetinaNetPostProcessor
from detops.modeling.rpn.retinanet.loss import RetinaNetLoss
from detops.ops import BoxCoder

pytestmark = pytest.mark.slow

SMALL = [
    "MODEL.BACKBONE.CONV_BODY", "R-18-FPN-RETINANET",
    "MODEL.RESNETS.TRANS_FUNC", "BasicBlockWithGN", "MODEL.RESNETS.STEM_FUNC", "StemWithGN",
    "MODEL.GROUP_NORM.NUM_GROUPS", 8, "MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 0,
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.RETINANET.NUM_CLASSES", 3,
    "MODEL.RETINANET.NUM_CONVS", 1, "MODEL.RETINANET.ANCHOR_SIZES", (16, 24, 48),
    "MODEL.RETINANET.ANCHOR_STRIDES", (8, 16, 32), "MODEL.RESNETS.NUM_STAGES", 2,
    "MODEL.RETINANET.SCALES_PER_OCTAVE", 2,
    "INPUT.MIN_SIZE_TRAIN", (64, 80), "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TRAIN", 96,
]  # fmt: skip


def small_detector(overrides=()):
    torch.manual_seed(0)
    return build_detection_model(
        load_config("configs/retinanet_R_50_FPN_1x.yaml", [*SMALL, *overrides])
    )


def test_state_dict_has_expected_names_and_shapes():
    model = build_detection_model(load_config("configs/retinanet_R_50_FPN_1x.yaml"))
    state = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    rest = {name: shape for name, shape in state.items() if not name.startswith("backbone.body.")}
    expected = {f"rpn.anchor_generator.cell_anchors.{i}": (9, 4) for i in range(5)}
    for i, channels in ((2, 512), (3, 1024), (4, 2048)):
        expected |= {
            f"backbone.fpn.fpn_inner{i}.weight": (256, channels, 1, 1),
            f"backbone.fpn.fpn_layer{i}.weight": (256, 256, 3, 3),
        }
    expected["backbone.fpn.top_blocks.p6.weight"] = (256, 2048, 3, 3)
    expected["backbone.fpn.top_blocks.p7.weight"] = (256, 256, 3, 3)
    for i in (0, 2, 4, 6):
        expected[f"rpn.head.cls_tower.{i}.weight"] = (256, 256, 3, 3)
        expected[f"rpn.head.bbox_tower.{i}.weight"] = (256, 256, 3, 3)
    expected["rpn.head.cls_logits.weight"] = (720, 256, 3, 3)
    expected["rpn.head.bbox_pred.weight"] = (36, 256, 3, 3)
    biases = {n.replace("weight", "bias"): s[:1] for n, s in expected.items() if "weight" in n}
    assert rest == expected | biases


def test_anchors_cover_every_scale_of_an_octave():
    model = small_detector(
        ["MODEL.RETINANET.ANCHOR_SIZES", (32, 64, 128), "MODEL.RETINANET.SCALES_PER_OCTAVE", 3]
    )
    sizes = [[s * 2 ** (i / 3) for i in range(3)] for s in (32, 64, 128)]
    expected = AnchorGenerator(sizes, (0.5, 1.0, 2.0), (8, 16, 32)).state_dict()
    found = model.rpn.anchor_generator.state_dict()
    assert list(found) == list(expected)
    for name in expected:
        assert torch.equal(found[name], expected[name])


@pytest.mark.parametrize("size", [(160, 224), (96, 32), (800, 1088)])
def test_anchors_on_odd_feature_maps_match_torchvision(size):
    sizes, strides = ((32, 40), (64, 80), (128, 161)), (16, 32, 64)
    features = [torch.zeros(1, 1, -(-size[0] // s), -(-size[1] // s)) for s in strides]
    images = TorchvisionImageList(torch.zeros(1, 3, *size), [size])
    (expected,) = TorchvisionAnchors(sizes, ((0.5, 1.0),) * 3)(images, features)
    found = AnchorGenerator(sizes, (0.5, 1.0), strides, stride_from_size=True)(features)
    assert torch.equal(torch.cat(found), expected)
    nominal = torch.cat(AnchorGenerator(sizes, (0.5, 1.0), strides)(features))
    assert not torch.equal(nominal, expected)


def test_head_matches_torchvision():
    ours = RetinaNetHead(in_channels=8, num_anchors=3, num_classes=5)
    reference = theirs.RetinaNetHead(8, 3, 5)
    pairs = (
        (ours.cls_tower, reference.classification_head.conv),
        (ours.bbox_tower, reference.regression_head.conv),
    )
    for tower, convs in pairs:
        for i, block in enumerate(convs):
            block[0].load_state_dict(tower[2 * i].state_dict())
    reference.classification_head.cls_logits.load_state_dict(ours.cls_logits.state_dict())
    reference.regression_head.bbox_reg.load_state_dict(ours.bbox_pred.state_dict())
    features = [torch.randn(2, 8, 7, 5), torch.randn(2, 8, 4, 3)]
    expected = reference(features)
    logits, deltas = ours(features)
    torch.testing.assert_close(torch.cat(logits, 1), expected["cls_logits"])
    torch.testing.assert_close(torch.cat(deltas, 1), expected["bbox_regression"])
    # "Focal Loss", section 4.1: every class starts at the prior.
    assert torch.cat(logits, 1).sigmoid().mean().item() == pytest.approx(0.01, rel=0.05)


def random_outputs(images=2, classes=4):
    """Returns random logits, deltas and anchors of two levels."""
    generator = torch.Generator().manual_seed(3)
    logits, deltas, anchors = [], [], []
    for stride, height, width in ((8, 8, 10), (16, 4, 5)):
        count = height * width * 2
        logits.append(torch.randn(images, count, classes, generator=generator) * 2 - 2)
        deltas.append(torch.randn(images, count, 4, generator=generator) * 0.3)
        level = AnchorGenerator([[2 * stride]], [0.5, 2.0], [stride])
        anchors += level([torch.zeros(1, 1, height, width)])
    return logits, deltas, anchors


def loss(**changes):
    settings = {
        "matcher": Matcher(0.5, 0.4, True), "box_coder": BoxCoder(),
        "alpha": 0.25, "gamma": 2.0, "beta": 0.11, "regress_norm": 4.0,
    }  # fmt: skip
    return RetinaNetLoss(**(settings | changes))


def random_targets():
    generator = torch.Generator().manual_seed(4)
    targets = []
    for count in (12, 0):
        corner = torch.rand(count, 2, generator=generator) * 40
        side = 10 + torch.rand(count, 2, generator=generator) * 30
        labels = torch.randint(1, 5, (count,), generator=generator)
        targets.append({"boxes": torch.cat([corner, corner + side], 1), "labels": labels})
    return targets


def test_loss_of_one_image_matches_torchvision():
    logits, deltas, anchors = random_outputs(1, 5)
    target = random_targets()[0]
    every = torch.cat(anchors)
    ours = loss(beta=0.0, regress_norm=1.0)(
        logits, deltas, every, [torch.ones(len(every), dtype=torch.bool)], [target]
    )
    reference = theirs.RetinaNetHead(8, 2, 5)
    match = Matcher(0.5, 0.4, True)(target["boxes"], every)
    matched = int((match >= 0).sum())
    assert matched and (match == -2).any()
    # A torchvision label is the column index; ours is one more.
    expected = reference.compute_loss(
        [target | {"labels": target["labels"] - 1}],
        {"cls_logits": torch.cat(logits, 1), "bbox_regression": torch.cat(deltas, 1)},
        [every],
        [match],
    )
    by_image = expected["classification"] * matched / (matched + 1)
    torch.testing.assert_close(ours["loss_retina_cls"], by_image)
    torch.testing.assert_close(ours["loss_retina_reg"], expected["bbox_regression"])


def test_loss_of_a_batch_equals_a_slow_loop():
    logits, deltas, anchors = random_outputs()
    for tensor in logits + deltas:
        tensor.requires_grad_()
    targets, all_anchors = random_targets(), torch.cat(anchors)
    visible = [torch.rand(len(all_anchors)) < 0.9 for _ in targets]
    found = loss()(logits, deltas, all_anchors, visible, targets)
    classes, boxes, positives = 0.0, 0.0, 0
    for i, target in enumerate(targets):
        iou = box_iou(target["boxes"], all_anchors)
        for j in torch.nonzero(visible[i]).flatten().tolist():
            best_iou, truth = iou[:, j].max(0) if len(iou) else (torch.tensor(0.0), 0)
            is_best_match = len(iou) and (iou[:, j] == iou.amax(1)).any()
            if 0.4 <= best_iou < 0.5 and not is_best_match:
                continue
            one_hot = torch.zeros(4)
            logit, delta = torch.cat(logits, 1)[i, j], torch.cat(deltas, 1)[i, j]
            if best_iou >= 0.5 or is_best_match:
                positives += 1
                one_hot[target["labels"][truth] - 1] = 1
                delta_target = BoxCoder().encode(
                    target["boxes"][truth][None], all_anchors[j][None]
                )[0]
                boxes += torch.nn.functional.smooth_l1_loss(
                    delta, delta_target, beta=0.11, reduction="sum"
                )
            classes += slow_focal_loss(logit, one_hot, 0.25, 2, "sum")
    assert positives > 4
    torch.testing.assert_close(found["loss_retina_cls"], classes / (positives + 2))
    torch.testing.assert_close(found["loss_retina_reg"], boxes / (4 * positives))
    ours = torch.autograd.grad(sum(found.values()), logits + deltas, retain_graph=True)
    expected = torch.autograd.grad(
        classes / (positives + 2) + boxes / (4 * positives), logits + deltas
    )
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("top_n", [1000, 30])
def test_detections_match_torchvision(top_n):
    logits, deltas, anchors = random_outputs()
    sizes = [(60, 77), (50, 80)]
    ours = RetinaNetPostProcessor(BoxCoder(), 0.05, top_n, 0.5, 40)(logits, deltas, anchors, sizes)
    settings = SimpleNamespace(
        score_thresh=0.05,
        topk_candidates=top_n,
        nms_thresh=0.5,
        detections_per_img=40,
        box_coder=TorchvisionCoder((1.0, 1.0, 1.0, 1.0)),
    )
    outputs = {"cls_logits": logits, "bbox_regression": deltas}
    expected = theirs.RetinaNet.postprocess_detections(settings, outputs, [anchors] * 2, sizes)
    for found, reference in zip(ours, expected, strict=True):
        assert len(found["scores"]) == 40
        torch.testing.assert_close(found["boxes"], reference["boxes"])
        torch.testing.assert_close(found["scores"], reference["scores"])
        assert torch.equal(found["labels"], reference["labels"] + 1)


def test_low_scores_and_nan_give_no_detections():
    logits, deltas, anchors = random_outputs()
    select = RetinaNetPostProcessor(BoxCoder(), 0.05, 1000, 0.5, 100)
    for level in logits:
        level[0] = -9
    deltas[0][1, 0] = logits[1][1, 3] = float("nan")
    empty, other = select(logits, deltas, anchors, [(64, 80)] * 2)
    assert {key: tuple(value.shape) for key, value in empty.items()} == {
        "boxes": (0, 4), "labels": (0,), "scores": (0,)
    }  # fmt: skip
    assert empty["labels"].dtype == torch.int64
    assert len(other["scores"]) == 100 and all(v.isfinite().all() for v in other.values())


@pytest.mark.parametrize("top_n", [5, 1000])
def test_nan_scores_do_not_use_up_the_limit(top_n):
    """One class is NaN at more anchors than are selected; their other classes still count."""
    logits, deltas, anchors = random_outputs()
    select = RetinaNetPostProcessor(BoxCoder(), 0.05, top_n, 0.5, 100)
    lowest = [level.clone() for level in logits]
    for nan, low in zip(logits, lowest, strict=True):
        nan[:, ::2, 0], low[:, ::2, 0] = float("nan"), -torch.inf
    found, expected = (select(x, deltas, anchors, [(64, 80)] * 2) for x in (logits, lowest))
    for ours, theirs_ in zip(found, expected, strict=True):
        assert len(ours["scores"]) > 4
        assert all(torch.equal(ours[key], value) for key, value in theirs_.items())


def test_training_gives_losses_that_reach_every_parameter():
    model = small_detector().train()
    losses = model(*example())
    assert set(losses) == {"loss_retina_cls", "loss_retina_reg"}
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_training_lowers_the_loss_and_finds_the_objects():
    model = small_detector().train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    totals = []
    images, targets = example()
    for _ in range(40):
        total = sum(model(images[:1], targets[:1]).values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert sum(totals[-3:]) < 0.4 * sum(totals[:3])
    with torch.no_grad():
        (found,) = model.eval()(images[:1])
    assert (found["scores"].diff() <= 0).all() and len(found["scores"]) <= 100
    assert (found["boxes"][:, 2] <= images[0].shape[2]).all()
    assert set(found["labels"].tolist()) == {1}
    assert (box_iou(targets[0]["boxes"], found["boxes"]).amax(1) > 0.5).all()


@pytest.mark.parametrize("size", [(3, 1, 1), (3, 5, 90), (3, 33, 2)])
def test_tiny_images_without_objects_train_and_detect(size):
    model = small_detector(["INPUT.MIN_SIZE_TRAIN", "(0,)", "INPUT.MIN_SIZE_TEST", 0])
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    losses = model.train()([torch.rand(size)], [target])
    assert losses["loss_retina_reg"] == 0 and losses["loss_retina_cls"] > 0
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.eval()([torch.rand(size)])[0]["boxes"].shape[1] == 4


def test_autocast_gives_finite_float32_losses():
    model = small_detector().train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(*example())
    assert all(v.dtype == torch.float32 and v.isfinite() for v in losses.values())
    sum(losses.values()).backward()


def test_training_requires_targets_with_valid_labels():
    model, (images, targets) = small_detector().train(), example()
    with pytest.raises(ValueError, match="targets: expected one per image .2., got None"):
        model(images)
    with pytest.raises(ValueError, match="RetinaNet: targets are required in training, got None"):
        model.rpn(model.backbone(torch.rand(1, 3, 64, 64)), [(64, 64)])
    targets[1]["labels"][0] = 3
    with pytest.raises(ValueError, match=r"targets\[1\].*expected at least 1 and below 3, got 3"):
        model(images, targets)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["MODEL.RETINANET.NUM_CLASSES", 1], "RETINANET.NUM_CLASSES: expected at least 2, got 1"),
        (["MODEL.RETINANET.PRIOR_PROB", 1.0], "PRIOR_PROB: expected more than 0 and less than 1"),
        (["MODEL.RETINANET.SCALES_PER_OCTAVE", 0], "SCALES_PER_OCTAVE: expected at least 1, got 0"),
        (["MODEL.RETINANET.ANCHOR_STRIDES", (8, 16)],
         "MODEL.RETINANET.ANCHOR_SIZES, MODEL.RETINANET.ANCHOR_STRIDES: .*3.*, got 3 and 2"),
        (["MODEL.RETINANET.FG_IOU_THRESHOLD", 0.3], "expected 0 <= low <= high"),
        (["MODEL.MASK_ON", True], "MODEL.MASK_ON.*expected False"),
        (["MODEL.BACKBONE.CONV_BODY", "R-18-FPN", "MODEL.FPN.EXTRA_LEVEL", False],
         r"expected one entry per level .2., got 3 and 3"),
    ],
)  # fmt: skip
def test_invalid_configs_are_rejected(overrides, message):
    with pytest.raises(ConfigError, match=message):
        small_detector(overrides)
