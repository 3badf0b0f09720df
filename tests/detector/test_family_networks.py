"""Networks of the unchanged maskrcnn-benchmark YAML files, in full size and small."""

import re

import family_state
import pytest
import torch
from family_configs import CONFIGS
from test_modeling_detector import example

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.image_list import to_image_list

pytestmark = pytest.mark.slow

# Maps a maskrcnn-benchmark file to our config of the same network.
SHIPPED = {
    "e2e_mask_rcnn_R_50_C4_1x": "mask_rcnn_R_50_C4_1x",
    "e2e_mask_rcnn_R_50_FPN_1x": "mask_rcnn_R_50_FPN_1x",
    "e2e_mask_rcnn_R_101_FPN_1x": "mask_rcnn_R_101_FPN_1x",
    "e2e_mask_rcnn_X_101_32x8d_FPN_1x": "mask_rcnn_X_101_32x8d_FPN_1x",
    "e2e_keypoint_rcnn_R_50_FPN_1x": "keypoint_rcnn_R_50_FPN_1x",
    "dcn/e2e_mask_rcnn_mdconv_R_50_FPN_1x": "mask_rcnn_mdconv_R_50_FPN_1x",
    "gn_baselines/e2e_mask_rcnn_R_50_FPN_1x_gn": "mask_rcnn_R_50_FPN_gn_1x",
    "e2e_faster_rcnn_R_50_C4_1x": "faster_rcnn_R_50_C4_1x",
    "e2e_faster_rcnn_R_50_FPN_1x": "faster_rcnn_R_50_FPN_1x",
    "e2e_faster_rcnn_R_101_FPN_1x": "faster_rcnn_R_101_FPN_1x",
    "e2e_faster_rcnn_X_101_32x8d_FPN_1x": "faster_rcnn_X_101_32x8d_FPN_1x",
    "rpn_R_50_C4_1x": "rpn_R_50_C4_1x",
    "rpn_R_50_FPN_1x": "rpn_R_50_FPN_1x",
    "dcn/e2e_faster_rcnn_dconv_R_50_FPN_1x": "faster_rcnn_dconv_R_50_FPN_1x",
    "dcn/e2e_faster_rcnn_mdconv_R_50_FPN_1x": "faster_rcnn_mdconv_R_50_FPN_1x",
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_1x_gn": "faster_rcnn_R_50_FPN_gn_1x",
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_Xconv1fc_1x_gn": "faster_rcnn_R_50_FPN_Xconv1fc_gn_1x",
    "gn_baselines/scratch_e2e_faster_rcnn_R_50_FPN_3x_gn": "scratch_faster_rcnn_R_50_FPN_gn_3x",
}
SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 8,
    "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.GROUP_NORM.NUM_GROUPS", 4,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 16, "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 16,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.RPN.STRADDLE_THRESH", -1,
    "MODEL.RETINANET.NUM_CLASSES", 3, "MODEL.RETINANET.NUM_CONVS", 1,
    "MODEL.RPN.PRE_NMS_TOP_N_TRAIN", 100, "MODEL.RPN.PRE_NMS_TOP_N_TEST", 100,
    "MODEL.RPN.POST_NMS_TOP_N_TEST", 50, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 50,
    "INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TRAIN", 96,
]  # fmt: skip


@pytest.fixture
def family(tmp_path):
    """Returns a function that loads the config of a maskrcnn-benchmark file."""

    def load(name, overrides=()):
        file = tmp_path / "family.yaml"
        file.write_text(CONFIGS[name])
        return load_config(file, overrides)

    return load


def small(load, name, overrides=()):
    torch.manual_seed(0)
    if CONFIGS[name].count("NUM_GROUPS: 32"):
        overrides = ["MODEL.RESNETS.NUM_GROUPS", 2, *overrides]
    # Without a pyramid, the output channels are those of the last stage.
    channels = 8 if "FPN" in name else 32
    return build_detection_model(
        load(name, [*SMALL, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", channels, *overrides])
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_every_maskrcnn_benchmark_config_loads(family, name):
    cfg = family(name)
    assert cfg.MODEL.MASK_ON == ("mask_rcnn" in name)
    assert cfg.MODEL.KEYPOINT_ON == ("keypoint" in name)
    assert cfg.MODEL.RETINANET_ON == ("retinanet" in name)
    assert len(cfg.DATASETS.TRAIN) in (1, 2) and all("_" in d for d in cfg.DATASETS.TRAIN)


@pytest.mark.parametrize("name", family_state.STATES)
def test_state_dict_matches_maskrcnn_benchmark(family, name):
    # The meta device allocates no memory; names and shapes suffice.
    with torch.device("meta"):
        model = build_detection_model(family(name))
    state = {key: tuple(t.shape) for key, t in model.state_dict().items()}
    assert state == family_state.STATES[name]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_equal_maskrcnn_benchmark(family, request, name):
    ours = load_config(request.config.rootpath / "configs" / f"{SHIPPED[name]}.yaml")
    theirs = family(name, ["MODEL.WEIGHT", ours.MODEL.WEIGHT])
    for section in ("MODEL", "INPUT", "DATALOADER", "SOLVER"):
        assert ours[section] == theirs[section]


def frozen_names(model, freeze_at):
    """Returns the names of the parameters that FREEZE_CONV_BODY_AT freezes."""
    stages = ["stem", "layer1", "layer2", "layer3", "layer4"][:freeze_at]
    prefixes = tuple(f"backbone.body.{stage}." for stage in stages)
    return {n for n, _ in model.named_parameters() if n.startswith(prefixes)} if stages else set()


# One network of each kind, and variants without a published file.
NETWORKS = {n: (n, []) for n in SHIPPED if not re.search("101|mask|keypoint", n)} | {
    "X_50_32x8d_FPN": (
        "e2e_faster_rcnn_X_101_32x8d_FPN_1x",
        ["MODEL.BACKBONE.CONV_BODY", "R-50-FPN"],
    ),
    "retinanet": ("retinanet/retinanet_R-50-FPN_1x", []),
    "retinanet P5": ("retinanet/retinanet_R-50-FPN_P5_1x", []),
    "R_50_C5": (
        "e2e_faster_rcnn_R_50_C4_1x",
        ["MODEL.BACKBONE.CONV_BODY", "R-50-C5", "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 64,
         "MODEL.RPN.ANCHOR_STRIDE", (32,), "MODEL.ROI_BOX_HEAD.POOLER_SCALES", (1 / 32,),
         "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR", "FPN2MLPFeatureExtractor",
         "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION", 7],
    ),
    "dilated R_50_C4": ("e2e_faster_rcnn_R_50_C4_1x", ["MODEL.RESNETS.RES5_DILATION", 2]),
    "nothing frozen": ("e2e_faster_rcnn_R_50_C4_1x", ["MODEL.BACKBONE.FREEZE_CONV_BODY_AT", -1]),
    "body frozen": ("rpn_R_50_FPN_1x", ["MODEL.BACKBONE.FREEZE_CONV_BODY_AT", 5]),
    "deformable groups": (
        "dcn/e2e_faster_rcnn_mdconv_R_50_FPN_1x",
        ["MODEL.RESNETS.DEFORMABLE_GROUPS", 2, "MODEL.RESNETS.NUM_GROUPS", 2],
    ),
    "class-agnostic xconv without GN": (
        "gn_baselines/e2e_faster_rcnn_R_50_FPN_Xconv1fc_1x_gn",
        ["MODEL.ROI_BOX_HEAD.USE_GN", False, "MODEL.CLS_AGNOSTIC_BBOX_REG", True,
         "MODEL.ROI_BOX_HEAD.DILATION", 2, "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS", 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_small_networks_train_and_detect(family, network):
    name, overrides = NETWORKS[network]
    model = small(family, name, overrides).train()
    losses = model(*example())
    if "retinanet" in name:
        assert set(losses) == {"loss_retina_cls", "loss_retina_reg"}
    else:
        box = set() if "rpn" in name else {"loss_classifier", "loss_box_reg"}
        assert set(losses) == {"loss_objectness", "loss_rpn_box_reg"} | box
    total = sum(losses.values())
    assert total.isfinite()
    total.backward()
    freeze_at = {"nothing frozen": 0, "body frozen": 5}.get(network, 0 if "scratch" in name else 2)
    frozen = frozen_names(model, freeze_at)
    for parameter_name, parameter in model.named_parameters():
        assert parameter.requires_grad == (parameter_name not in frozen), parameter_name
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        else:
            assert parameter.grad is None, parameter_name
    model.eval()
    images, _ = example()
    with torch.no_grad():
        found = model(images)
    for detection, image in zip(found, images, strict=True):
        boxes, labels, scores = (detection[k] for k in ("boxes", "labels", "scores"))
        assert len(boxes) == len(labels) == len(scores) > 0 and labels.dtype == torch.int64
        assert (scores.diff() <= 0).all() and (scores >= 0).all() and (scores <= 1).all()
        assert (boxes >= 0).all() and (boxes[:, 2] <= image.shape[2]).all()
        assert set(labels.tolist()) <= ({1} if "rpn" in name else {1, 2})


@pytest.mark.parametrize("name", ["e2e_faster_rcnn_R_50_C4_1x", "rpn_R_50_C4_1x"])
def test_training_without_objects_gives_finite_losses(family, name):
    model = small(family, name).train()
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    total = sum(model([torch.rand(3, 40, 50)], [target]).values())
    total.backward()
    assert total.isfinite()
    # Fused ReLUs turn NaN into 0, so boxes may appear, but all are finite.
    found = model.eval()([torch.full((3, 40, 40), float("nan"))])[0]
    assert found["boxes"].isfinite().all() and found["scores"].isfinite().all()


@pytest.mark.parametrize(
    "name", ["e2e_faster_rcnn_R_50_C4_1x", "dcn/e2e_faster_rcnn_mdconv_R_50_FPN_1x"]
)
def test_autocast_gives_finite_float32_losses(family, name):
    model = small(family, name).train()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(*example())
    assert all(v.dtype == torch.float32 and v.isfinite() for v in losses.values())
    sum(losses.values()).backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.isfinite().all(), parameter_name


def test_rpn_only_network_returns_its_proposals(family):
    model = small(family, "rpn_R_50_C4_1x", ["INPUT.MIN_SIZE_TEST", 0]).eval()
    assert model.roi_heads is None
    images = [torch.rand(3, 64, 80)]
    with torch.no_grad():
        (found,) = model(images)
        batch = to_image_list([images[0].flip(0) * 255 - model.pixel_mean])
        features = model.backbone(batch.tensors)
        logits, deltas = model.rpn.head(features)
        ((boxes, best),) = model.rpn.selectors[1](
            logits, deltas, model.rpn.anchor_generator(features), batch.sizes
        )
    torch.testing.assert_close(found["boxes"], boxes)
    torch.testing.assert_close(found["scores"], best.sigmoid())


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 256],
            "BACKBONE_OUT_CHANNELS: expected 32, the output channels of R-50-C4, got 256",
        ),
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.RESNETS.NUM_STAGES", 3],
            "NUM_STAGES: expected 4 with R-50-C4, got 3",
        ),
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.RPN.ANCHOR_STRIDE", (8, 16)],
            "MODEL.RPN.USE_FPN: expected True with 1 levels and 2 MODEL.RPN.ANCHOR_STRIDE",
        ),
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.RPN.ANCHOR_SIZES", ((8,), (16,))],
            "MODEL.RPN.ANCHOR_SIZES: expected numbers if MODEL.RPN.USE_FPN is False",
        ),
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.ROI_BOX_HEAD.POOLER_SCALES", (0.25, 0.125)],
            "MODEL.ROI_BOX_HEAD.POOLER_SCALES: expected 1 to 1",
        ),
        ("e2e_faster_rcnn_R_50_FPN_1x", ["MODEL.RPN.USE_FPN", False], "USE_FPN: expected True"),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.RESNETS.RES5_DILATION", 2],
            "MODEL.RESNETS.RES5_DILATION: expected 1 with a pyramid",
        ),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.RESNETS.STAGE_WITH_DCN", (True,)],
            "MODEL.RESNETS.STAGE_WITH_DCN: expected 4 values, got .True.",
        ),
        (
            "dcn/e2e_faster_rcnn_dconv_R_50_FPN_1x",
            ["MODEL.RESNETS.DEFORMABLE_GROUPS", 3],
            "MODEL.RESNETS.DEFORMABLE_GROUPS: expected a divisor of 4, got 3",
        ),
        (
            "dcn/e2e_faster_rcnn_dconv_R_50_FPN_1x",
            ["MODEL.RESNETS.TRANS_FUNC", "BasicBlockWithGN"],
            "MODEL.RESNETS.TRANS_FUNC: basic blocks do not support STAGE_WITH_DCN",
        ),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.RESNETS.STEM_FUNC", "Stem"],
            "MODEL.RESNETS.STEM_FUNC: expected ...WithFixedBatchNorm or ...WithGN, got Stem",
        ),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.RESNETS.NUM_GROUPS", 0],
            "MODEL.RESNETS.NUM_GROUPS: expected at least 1, got 0",
        ),
        (
            "e2e_faster_rcnn_R_50_C4_1x",
            ["MODEL.RPN.ANCHOR_SIZES", ()],
            "MODEL.RPN.ANCHOR_SIZES: expected at least one value, got ..",
        ),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.RPN.ANCHOR_SIZES", ((8,), (8, -2))],
            r"MODEL.RPN.ANCHOR_SIZES: expected more than 0, got ..8.0., .8.0, -2.0..",
        ),
        (
            "e2e_faster_rcnn_R_50_FPN_1x",
            ["MODEL.ROI_HEADS.FG_IOU_THRESHOLD", 0.4],
            "MODEL.ROI_HEADS.FG_IOU_THRESHOLD: expected 0 or more, and ascending, got 0.5 and 0.4",
        ),
    ],
)
def test_invalid_config_combinations_are_rejected(family, name, overrides, message):
    with pytest.raises(ConfigError, match=message):
        small(family, name, overrides)
