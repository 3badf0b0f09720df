"""Limits of 0 and test-time augmentation, as in maskrcnn-benchmark."""

import pytest
import torch

import detops
from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.roi_heads.box.inference import BoxPostProcessor
from detops.modeling.rpn.inference import ProposalSelector
from detops.modeling.rpn.retinanet.inference import RetinaNetPostProcessor
from detops.ops import BoxCoder

SIZE = (100, 120)


def random_boxes(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 60
    return torch.cat([corner, corner + 10 + torch.rand(count, 2, generator=generator) * 20], 1)


def selector(**changes):
    values = dict(
        box_coder=BoxCoder(), pre_nms_top_n=40, post_nms_top_n=5, fpn_post_nms_top_n=8,
        per_batch=False, nms_thresh=0.5, min_size=0.0,
    )  # fmt: skip
    return ProposalSelector(**(values | changes))


def count_selected(levels, **changes):
    """Returns how many of 30 anchors, used as proposals, remain on each of `levels` levels."""
    anchors = [random_boxes(30, seed) for seed in range(levels)]
    scores = [torch.rand(1, 30, generator=torch.Generator().manual_seed(9)) for _ in anchors]
    deltas = [torch.zeros(1, 30, 4) for _ in anchors]
    boxes, logits = selector(**changes)(scores, deltas, anchors, [SIZE])[0]
    assert (logits.diff() <= 0).all()
    # The box coder returns an anchor with a rounding error.
    return [int(((boxes[:, None] - a).abs().amax(2) < 1e-3).any(1).sum()) for a in anchors]


def count_after_nms(level, threshold):
    scores = torch.rand(1, 30, generator=torch.Generator().manual_seed(9))[0]
    return len(detops.nms(random_boxes(30, level), scores, threshold))


@pytest.mark.parametrize("key", ["POST_NMS_TOP_N_TEST", "NMS_THRESH"])
def test_rpn_treats_0_as_no_limit_and_no_nms(key):
    assert count_selected(1) == [5] and count_selected(2, fpn_post_nms_top_n=99) == [5, 5]
    if key == "POST_NMS_TOP_N_TEST":
        assert count_after_nms(0, 0.5) > 5 and count_selected(1, post_nms_top_n=0) == [
            count_after_nms(0, 0.5)
        ]
        both = [count_after_nms(0, 0.5), count_after_nms(1, 0.5)]
        assert count_selected(2, post_nms_top_n=0, fpn_post_nms_top_n=99) == both
        assert sum(count_selected(2, post_nms_top_n=0)) == 8
    else:
        # maskrcnn-benchmark applies the limit only as part of NMS, which is skipped here.
        assert count_selected(1, nms_thresh=0.0) == count_selected(1, nms_thresh=-1.0) == [30]
        assert sum(count_selected(2, nms_thresh=0.0)) == 8


def test_rpn_top_n_of_0_keeps_no_proposals():
    """maskrcnn-benchmark passes these limits to topk, which then selects nothing."""
    assert count_selected(1, pre_nms_top_n=0) == [0]
    assert sum(count_selected(2, fpn_post_nms_top_n=0)) == 0


@pytest.mark.parametrize(("nms", "limit", "expected"), [(0.5, 7, 7), (0.5, 0, "nms"), (0.0, 0, 60)])
def test_box_head_applies_nms_and_the_detection_limit(nms, limit, expected):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(30, 3, generator=generator)
    head = BoxPostProcessor(BoxCoder(), 0.0, nms, limit)
    (found,) = head(logits, torch.zeros(30, 12), [random_boxes(30)], [SIZE])
    if expected == "nms":
        scores = logits.softmax(1)
        expected = sum(len(detops.nms(random_boxes(30), scores[:, c], nms)) for c in (1, 2))
        assert expected > 7
    assert len(found["scores"]) == len(found["boxes"]) == len(found["labels"]) == expected
    assert (found["scores"].diff() <= 0).all()


@pytest.mark.parametrize(("nms", "limit", "expected"), [(0.5, 7, 7), (0.5, 0, "nms"), (0.0, 0, 60)])
def test_retinanet_applies_nms_and_the_detection_limit(nms, limit, expected):
    logits = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(3))
    head = RetinaNetPostProcessor(BoxCoder(), 0.0, 1000, nms, limit)
    (found,) = head([logits], [torch.zeros(1, 30, 4)], [random_boxes(30)], [SIZE])
    if expected == "nms":
        expected = sum(len(detops.nms(random_boxes(30), logits[0, :, c], nms)) for c in (0, 1))
        assert expected > 7
    assert len(found["scores"]) == expected and (found["scores"].diff() <= 0).all()


SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0,
    "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TEST", 96,
]  # fmt: skip
VIEWS = [
    "TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True, "TEST.BBOX_AUG.SCALES", (48, 80),
    "TEST.BBOX_AUG.MAX_SIZE", 100, "TEST.BBOX_AUG.SCALE_H_FLIP", True,
]  # fmt: skip


def detector(config="configs/tree_crowns.yaml", *overrides):
    torch.manual_seed(0)
    cfg = load_config(config, [*SMALL, *overrides])
    model = build_detection_model(cfg).eval()
    if model.roi_heads is not None:  # scores and boxes that differ per proposal
        torch.nn.init.normal_(model.roi_heads.box.predictor.cls_score.weight, std=0.5)
        torch.nn.init.normal_(model.roi_heads.box.predictor.bbox_pred.weight, std=0.1)
    return model


@pytest.fixture(autouse=True)
def chdir_to_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def view_detections(model, image, shorter, longer, mirrored):
    """Computes the box head's output for one view, in pixels of the image, step by step."""
    height, width = image.shape[1:]
    scale = min(shorter / min(height, width), longer / max(height, width))
    h, w = int(height * scale), int(width * scale)
    x = (image.flip(0) * 255 if model.to_bgr255 else image) - model.pixel_mean
    x = torch.nn.functional.interpolate((x / model.pixel_std)[None], (h, w), mode="bilinear")
    x = x.flip(3) if mirrored else x
    step = model.size_divisibility or 1
    x = torch.nn.functional.pad(x, (0, -w % step, 0, -h % step))
    features = model.backbone(x)
    proposals, _ = model.rpn(features, [(h, w)])
    logits, deltas = model.roi_heads.box.predictor(
        model.roi_heads.box.feature_extractor(features, proposals)
    )
    coder = model.roi_heads.box.post_processor.box_coder
    boxes = coder.decode(deltas, proposals[0]).unflatten(1, (-1, 4))[:, 1:]
    boxes = detops.clip_boxes_to_image(boxes, (h, w))
    x1, y1, x2, y2 = boxes.unbind(-1)
    x1, x2 = (w - x2, w - x1) if mirrored else (x1, x2)
    boxes = torch.stack([x1 * width / w, y1 * height / h, x2 * width / w, y2 * height / h], -1)
    return boxes, logits.softmax(1)[:, 1:]


@torch.no_grad()
def test_nms_merges_the_detections_of_all_views():
    model, image = detector("configs/tree_crowns.yaml", *VIEWS), torch.rand(3, 64, 90)
    (found,) = model([image])
    views = [(64, 96, False), (64, 96, True), *((s, 100, m) for s in (48, 80) for m in (0, 1))]
    outputs = [view_detections(model, image, *view) for view in views]
    boxes, scores = (torch.cat(output) for output in zip(*outputs, strict=True))
    expected = []
    for label in (1, 2):
        keep = detops.nms(boxes[:, label - 1], scores[:, label - 1], 0.5)
        for i in keep.tolist():
            expected.append((float(scores[i, label - 1]), label, boxes[i, label - 1]))
    expected = sorted(expected, key=lambda e: -e[0])[:100]
    assert len(found["scores"]) == len(expected) > 20
    torch.testing.assert_close(found["scores"], torch.tensor([e[0] for e in expected]))
    torch.testing.assert_close(
        found["boxes"], torch.stack([e[2] for e in expected]), rtol=1e-4, atol=1e-2
    )
    single_view = detector()([image])[0]
    assert len(single_view["scores"]) != len(found["scores"]) or not torch.equal(
        single_view["scores"], found["scores"]
    )


@torch.no_grad()
def test_mirrored_image_gives_mirrored_boxes():
    flips = ["TEST.BBOX_AUG.ENABLED", True, "TEST.BBOX_AUG.H_FLIP", True]
    # This size avoids padding, which would be on the other side of the mirrored image.
    model, image = detector("configs/tree_crowns.yaml", *flips), torch.rand(3, 64, 96)
    (found,), (mirrored,) = model([image]), model([image.flip(2)])
    torch.testing.assert_close(found["scores"], mirrored["scores"], rtol=1e-4, atol=1e-5)
    x1, y1, x2, y2 = mirrored["boxes"].unbind(1)
    unmirrored = torch.stack([96 - x2, y1, 96 - x1, y2], 1)
    best = found["scores"] > found["scores"][30]  # ties may swap
    torch.testing.assert_close(found["boxes"][best], unmirrored[best], rtol=1e-4, atol=1e-2)


@torch.no_grad()
def test_merged_boxes_get_masks():
    small = ["MODEL.ROI_MASK_HEAD.CONV_LAYERS", (8,), "MODEL.RESNETS.WIDTH_PER_GROUP", 4]
    model = detector("configs/mask_rcnn_R_50_FPN_1x.yaml", *small, *VIEWS)
    for found, image in zip(model(2 * [torch.rand(3, 64, 80)]), range(2), strict=True):
        assert found["masks"].shape == (len(found["boxes"]), 1, 64, 80), image


@pytest.mark.parametrize("config", ["retinanet_R_50_FPN_1x", "rpn_R_50_FPN_1x"])
def test_augmentation_without_a_box_head_is_rejected(config):
    with pytest.raises(ConfigError, match="^TEST.BBOX_AUG.ENABLED: expected False with"):
        detector(f"configs/{config}.yaml", *VIEWS)
