import pytest
import torch

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow

SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32,
    "INPUT.MIN_SIZE_TRAIN", (64, 80), "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TRAIN", 96,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
]  # fmt: skip


def small_detector(seed=0, overrides=()):
    torch.manual_seed(seed)
    return build_detection_model(load_config("configs/tree_crowns.yaml", [*SMALL, *overrides]))


def example(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = [
        torch.rand(3, 60, 70, generator=generator),
        torch.rand(3, 50, 50, generator=generator),
    ]
    targets = []
    for count in (3, 2):
        corner = torch.rand(count, 2, generator=generator) * 20
        side = 8 + torch.rand(count, 2, generator=generator) * 20
        boxes = torch.cat([corner, corner + side], 1)
        targets.append({"boxes": boxes, "labels": torch.ones(count, dtype=torch.int64)})
    return images, targets


@pytest.fixture(autouse=True)
def chdir_to_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def test_r50_fpn_state_dict_has_expected_names_and_shapes():
    model = build_detection_model(load_config("configs/faster_rcnn_R_50_FPN_1x.yaml"))
    state = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    expected = {
        "backbone.body.stem.conv1.weight": (64, 3, 7, 7),
        "backbone.body.stem.bn1.running_var": (64,),
        "backbone.body.layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "backbone.body.layer1.0.downsample.1.weight": (256,),
        "backbone.body.layer1.0.conv1.weight": (64, 64, 1, 1),
        "backbone.body.layer2.3.conv2.weight": (128, 128, 3, 3),
        "backbone.body.layer3.5.bn3.bias": (1024,),
        "backbone.body.layer4.0.conv1.weight": (512, 1024, 1, 1),
        "backbone.body.layer4.2.conv3.weight": (2048, 512, 1, 1),
        "backbone.fpn.fpn_inner1.weight": (256, 256, 1, 1),
        "backbone.fpn.fpn_inner4.bias": (256,),
        "backbone.fpn.fpn_inner4.weight": (256, 2048, 1, 1),
        "backbone.fpn.fpn_layer1.weight": (256, 256, 3, 3),
        "rpn.anchor_generator.cell_anchors.0": (3, 4),
        "rpn.anchor_generator.cell_anchors.4": (3, 4),
        "rpn.head.conv.weight": (256, 256, 3, 3),
        "rpn.head.cls_logits.weight": (3, 256, 1, 1),
        "rpn.head.bbox_pred.weight": (12, 256, 1, 1),
        "roi_heads.box.feature_extractor.fc6.weight": (1024, 12544),
        "roi_heads.box.feature_extractor.fc7.bias": (1024,),
        "roi_heads.box.predictor.cls_score.weight": (81, 1024),
        "roi_heads.box.predictor.bbox_pred.weight": (324, 1024),
    }
    assert {name: state.get(name) for name in expected} == expected
    body = [n for n in state if n.startswith("backbone.body.")]
    # 53 convolutions, each followed by a frozen batch norm with four buffers.
    assert len(body) == 53 * 5 and len(state) == 265 + 16 + 5 + 6 + 8
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {n for n in state if "conv" in n or "downsample.0" in n} & {
        n for n in state if n.startswith(("backbone.body.stem", "backbone.body.layer1"))
    }


def test_training_gives_losses_that_reach_every_parameter():
    model = small_detector().train()
    losses = model(*example())
    assert set(losses) == {
        "loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg"
    }  # fmt: skip
    sum(losses.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_detections_are_in_pixels_of_each_image():
    model = small_detector(overrides=["MODEL.ROI_HEADS.SCORE_THRESH", 0.0]).eval()
    images, _ = example()
    with torch.no_grad():
        found = model(images)
    for detection, image in zip(found, images, strict=True):
        boxes, labels, scores = (detection[k] for k in ("boxes", "labels", "scores"))
        assert boxes.shape == (len(scores), 4) and 0 < len(scores) <= 100
        assert labels.dtype == torch.int64 and set(labels.tolist()) <= {1, 2}
        assert (scores.diff() <= 0).all()
        assert (boxes >= 0).all() and (boxes[:, 2] <= image.shape[2]).all()
        assert (boxes[:, 3] <= image.shape[1]).all() and (boxes[:, 2:] > boxes[:, :2]).all()


def test_same_seed_gives_the_same_bits():
    states = []
    for _ in range(2):
        model = small_detector(seed=5).train()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(2):
            optimizer.zero_grad()
            sum(model(*example(step)).values()).backward()
            optimizer.step()
        states.append(model.state_dict())
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name]), name


def test_training_lowers_the_loss():
    model = small_detector().train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    totals = []
    for _ in range(25):
        losses = model(*example())
        total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert sum(totals[-3:]) < 0.6 * sum(totals[:3])


@pytest.mark.parametrize("size", [(3, 1, 1), (3, 5, 90), (3, 33, 2)])
def test_tiny_images_without_objects_train_and_detect(size):
    model = small_detector(overrides=["INPUT.MIN_SIZE_TRAIN", "(0,)", "INPUT.MIN_SIZE_TEST", 0])
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    losses = model.train()([torch.rand(size)], [target])
    total = sum(losses.values())
    assert total.isfinite()
    total.backward()
    assert model.eval()([torch.rand(size)])[0]["boxes"].shape[1] == 4


def test_nan_image_gives_no_detections():
    model = small_detector().eval()
    found = model([torch.full((3, 40, 40), float("nan"))])
    assert found[0]["boxes"].shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_images_of_any_floating_dtype_give_equal_detections(dtype):
    images = [image.to(dtype) for image in IMAGES]
    model = small_detector().eval()
    for found, expected in zip(model(images), model([x.float() for x in images]), strict=True):
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_float64_detector_accepts_float32_images():
    model = small_detector().double().eval()
    (found,) = model(IMAGES[:1])
    assert found["boxes"].dtype == torch.float64 and len(found["boxes"]) > 0


def test_autocast_gives_finite_float32_losses():
    model = small_detector().train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(*example())
    assert all(v.dtype == torch.float32 and v.isfinite() for v in losses.values())
    sum(losses.values()).backward()


IMAGES, TARGETS = example()


@pytest.mark.parametrize(
    ("images", "targets", "message"),
    [
        ([], [], "images: expected at least one image, got none"),
        (None, [], "images: expected a list of tensors, got NoneType"),
        ([{"image": torch.rand(3, 8, 8)}], [], r"images\[0\]: expected a tensor, got dict"),
        ([torch.rand(1, 8, 8)], TARGETS[:1], r"images\[0\]: expected floating point \[3, h, w\]"),
        ([torch.zeros(3, 8, 8, dtype=torch.uint8)], TARGETS[:1], r"images\[0\].*torch.uint8"),
        (IMAGES, None, "targets: expected one per image .2., got None"),
        (IMAGES, TARGETS[:1], "targets: expected one per image .2., got 1"),
        (IMAGES[:1], [{"boxes": torch.rand(1, 4)}], r"targets\[0\]: expected a tensor 'labels'"),
        (IMAGES[:1], [TARGETS[0] | {"boxes": torch.rand(3, 5)}], r"\['boxes'\]: expected floating"),
        (IMAGES[:1], [TARGETS[0] | {"labels": torch.ones(3)}], r"labels'\]: expected int64 \[3\]"),
        (IMAGES[:1], [TARGETS[0] | {"boxes": -TARGETS[0]["boxes"]}],
         r"targets\[0\]\['boxes'\]\[0\]: expected x1 < x2 and y1 < y2"),
        (IMAGES[:1], [TARGETS[0] | {"labels": torch.tensor([1, 3, 1])}],
         r"targets\[0\]\['labels'\]\[1\]: expected at least 1 and below 3, got 3"),
    ],
)  # fmt: skip
def test_invalid_images_and_targets_are_rejected(images, targets, message):
    with pytest.raises(ValueError, match=message):
        small_detector().train()(images, targets)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["MODEL.BACKBONE.CONV_BODY", "R-9"],
            "unknown MODEL.BACKBONE.CONV_BODY 'R-9'; known: R-101",
        ),
        (["MODEL.RPN.RPN_HEAD", "x"], "unknown MODEL.RPN.RPN_HEAD 'x'"),
        (["MODEL.RPN.ANCHOR_STRIDE", (4, 8)], "expected one entry per level .3., got 3 and 2"),
        (
            ["MODEL.RPN.ANCHOR_SIZES", ((8,), (16,), (32, 64))],
            "the same number of sizes on every level",
        ),
        (["MODEL.RESNETS.TRANS_FUNC", "Block"], "expected ...WithFixedBatchNorm or ...WithGN"),
        (["MODEL.GROUP_NORM.NUM_GROUPS", 7], "16 channels do not divide into 7 groups"),
    ],
)
def test_invalid_configs_are_rejected(overrides, message):
    with pytest.raises(ConfigError, match=message):
        small_detector(overrides=overrides)
