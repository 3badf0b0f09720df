"""MODEL.CONVENTION maskrcnn-benchmark: detections equal those of the original code."""

import numpy as np
import pytest
import reference_maskrcnn_benchmark as reference
import torch
from PIL import Image

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.convention import CONVENTIONS
from detops.modeling.image_list import to_image_list
from detops.modeling.poolers import Pooler

SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16,
    "INPUT.MIN_SIZE_TEST", 96, "INPUT.MAX_SIZE_TEST", 150,
    "MODEL.RPN.ANCHOR_SIZES", [8.0, 16.0, 32.0, 64.0, 128.0],
    "MODEL.RPN.POST_NMS_TOP_N_TEST", 40, "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 60,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.1, "MODEL.CONVENTION", "maskrcnn-benchmark",
]  # fmt: skip
BOX = ["MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32, "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 4,
       "MODEL.ROI_BOX_HEAD.POOLER_CANONICAL_SCALE", 224]  # fmt: skip
MASK = ["MODEL.ROI_MASK_HEAD.CONV_LAYERS", [16, 16]]
STRIDES, RATIOS = (4, 8, 16, 32, 64), (0.5, 1.0, 2.0)


def smooth_image(height, width, seed=0):
    """Returns a smooth uint8 image with edges."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    large = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.array(large)


def to_float_tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def calibrate(model):
    """Scales layers so that logits and deltas spread like those of a trained detector."""
    image = to_float_tensor(smooth_image(90, 120, 5))
    batch = to_image_list([model._normalise(image)], model.size_divisibility)
    features = model.backbone(batch.tensors)
    boxes = [torch.tensor([[3.0, 4, 50, 60], [20, 9, 70, 33], [60, 30, 110, 88]])]
    target_stds = {"rpn.head.cls_logits": 0.5, "rpn.head.bbox_pred": 0.15}
    for layer, target_std in target_stds.items():
        output = model.rpn.head(features)[0 if "cls" in layer else 1]
        model.get_parameter(f"{layer}.weight").mul_(target_std / torch.cat(output, 1).std())
    head = model.roi_heads.box
    for i, target_std in enumerate((1.5, 1.0)):
        output = head.predictor(head.feature_extractor(features, boxes))[i]
        layer = (head.predictor.cls_score, head.predictor.bbox_pred)[i]
        layer.weight.mul_(target_std / output.std())
    # Saturated masks of 0 and 1 would interpolate to exactly 0.5 at many pixels.
    if model.roi_heads.mask is not None:
        mask = model.roi_heads.mask
        output = mask.predictor(mask.feature_extractor(features, boxes), torch.ones(3).long())
        mask.predictor.mask_fcn_logits.weight.mul_(2 / output.std())


@torch.no_grad()
def detector(config="mask_rcnn_R_50_FPN_1x", overrides=()):
    """Builds a detector that scores boxes differently, with the maskrcnn-benchmark anchors."""
    torch.manual_seed(0)
    model = build_detection_model(
        load_config(f"configs/{config}.yaml", [*SMALL, *BOX, *MASK, *overrides])
    ).eval()
    for name, p in model.named_parameters():
        if p.dim() > 1:
            torch.nn.init.kaiming_normal_(p)
        elif "bias" in name and "bn" not in name:
            p.normal_(0, 0.1)
    calibrate(model)
    anchors = model.rpn.anchor_generator.cell_anchors
    for level, (stride, size) in enumerate(zip(STRIDES, (8, 16, 32, 64, 128), strict=True)):
        theirs = reference.cell_anchors(stride, size, RATIOS)
        anchors[level].copy_(theirs + torch.tensor([0, 0, 1, 1]))
    return model


@pytest.mark.parametrize("height, width", [(60, 90), (90, 60), (64, 64), (300, 70), (33, 200)])
@pytest.mark.parametrize("small, large", [(48, 80), (100, 160), (60, 1000), (0, 10)])
def test_images_are_resized_like_pillow(height, width, small, large):
    pixels, mean = smooth_image(height, width), (1.0, 2.0, 3.0)
    ours = CONVENTIONS["maskrcnn-benchmark"].resize(
        to_float_tensor(pixels),
        lambda x: x.flip(0) * 255 - torch.tensor(mean).view(3, 1, 1),
        small,
        large,
    )
    if small == 0:
        assert ours.shape[1:] == (height, width)
        return
    expected = reference.prepare(pixels, small, large, mean)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
    torch.compiler.reset()
    graph = torch.compile(CONVENTIONS["maskrcnn-benchmark"].resize, fullgraph=True, backend="eager")
    traced = graph(to_float_tensor(pixels), lambda x: x * 255, small, large)
    # Either of Pillow's two passes may round half a byte up or down.
    assert (traced.flip(0) - torch.tensor(mean).view(3, 1, 1) - expected).abs().max() < 2.01


@pytest.mark.parametrize("scales", [[0.25, 0.125, 0.0625, 0.03125], [0.0625]])
def test_pooler_matches_maskrcnn_benchmark(scales):
    generator = torch.Generator().manual_seed(1)
    features = [torch.randn(2, 3, int(640 * s), int(800 * s), generator=generator) for s in scales]
    side = torch.tensor([1.0, 30, 111, 112, 223, 224, 447, 448, 500])
    boxes = [torch.stack([3 + 0 * side, 5 + 0 * side, 3 + side, 5 + side], 1), torch.empty(0, 4)]
    boxes[1] = boxes[0][[4, 2]] + 1.7
    ours = Pooler(5, scales, 2, convention=CONVENTIONS["maskrcnn-benchmark"])(features, boxes)
    inclusive = [b - torch.tensor([0, 0, 1, 1]) for b in boxes]
    torch.testing.assert_close(ours, reference.pool(features, inclusive, 5, scales, 2))
    default = Pooler(5, scales, 2)(features, boxes)
    assert (ours - default).abs().max() > 0.01
    without_boxes = Pooler(5, scales, 2, convention=CONVENTIONS["maskrcnn-benchmark"])(
        features, [boxes[0][:0], boxes[1][:0]]
    )
    assert without_boxes.shape == (0, 3, 5, 5)


def test_clipped_boxes_keep_a_pixel():
    boxes = torch.tensor([[-9.0, -9, -3, 5], [25, 3, 40, 30], [1, 2, 3, 4], [0.5, 0, 0.7, 9]])
    ours = CONVENTIONS["maskrcnn-benchmark"].clip(boxes, (10, 20))
    expected = reference.clip(boxes - torch.tensor([0, 0, 1, 1]), (10, 20))
    assert torch.equal(ours, expected + torch.tensor([0, 0, 1, 1]))
    assert ((ours[:, 2:] - ours[:, :2])[:2] >= 1).all()


@torch.no_grad()
def expected_detections(model, images, monkeypatch):
    """Yields the reference detections from the layer outputs of our network."""
    mean = model.pixel_mean.flatten().tolist()
    resized = [reference.prepare(p, model.min_size_test, model.max_size_test, mean) for p in images]
    batch = to_image_list(resized, model.size_divisibility)
    features = model.backbone(batch.tensors)
    logits, deltas = model.rpn.head(features)
    cells = model.rpn.anchor_generator.cell_anchors
    anchors = [
        reference.grid_anchors(cells[i] - torch.tensor([0, 0, 1, 1]), f.shape[2:], stride)
        for i, (f, stride) in enumerate(zip(features, STRIDES, strict=True))
    ]
    proposals = [
        reference.propose(
            [x[i] for x in logits], [x[i] for x in deltas], anchors, size, 1000, 40, 60, 0.7
        )
        for i, size in enumerate(batch.sizes)
    ]
    monkeypatch.setattr(
        Pooler,
        "forward",
        lambda self, features, boxes: reference.pool(
            features, boxes, self.output_size, self.scales, self.sampling_ratio
        ),
    )
    head = model.roi_heads.box
    scores, box_deltas = head.predictor(head.feature_extractor(features, proposals))
    rows = 0
    for i, (image, image_proposals, size) in enumerate(
        zip(images, proposals, batch.sizes, strict=True)
    ):
        image_rows = slice(rows, rows + len(image_proposals))
        rows += len(image_proposals)
        boxes, score, labels = reference.detect(
            scores[image_rows],
            box_deltas[image_rows],
            image_proposals,
            size,
            0.1,
            0.5,
            (10.0, 10, 5, 5),
        )
        mask_head = model.roi_heads.mask
        maps = [f[i : i + 1] for f in features]
        masks = mask_head.predictor(mask_head.feature_extractor(maps, [boxes]), labels).sigmoid()
        height, width = image.shape[:2]
        ratio = torch.tensor([width / size[1], height / size[0]]).repeat(2)
        boxes = boxes * ratio
        pasted = [
            reference.paste(m, b, (height, width))
            for m, b in zip(masks.flatten(0, -3), boxes, strict=True)
        ]
        yield boxes, score, labels, torch.stack(pasted)


def test_detections_match_maskrcnn_benchmark(monkeypatch):
    model = detector()
    images = [smooth_image(80, 120), smooth_image(130, 70, 1)]
    with torch.no_grad():
        ours = model([to_float_tensor(p) for p in images])
        monkeypatch.setattr(model, "convention", CONVENTIONS["detops"])
        default = model([to_float_tensor(p) for p in images])
        monkeypatch.undo()
    total = 0
    for found, (boxes, scores, labels, masks), default_found in zip(
        ours, expected_detections(model, images, monkeypatch), default, strict=True
    ):
        assert len(found["boxes"]) == len(boxes) > 3
        total += len(boxes)
        torch.testing.assert_close(found["scores"], scores, rtol=0, atol=1e-4)
        last_pixel = found["boxes"] - torch.tensor([0, 0, 1, 1])
        torch.testing.assert_close(last_pixel, boxes, rtol=0, atol=0.01)
        assert torch.equal(found["labels"], labels)
        intersection = (found["masks"][:, 0] & masks).flatten(1).sum(1)
        union = (found["masks"][:, 0] | masks).flatten(1).sum(1)
        assert (intersection >= 0.99 * union).all() and masks.any()
        assert default_found["boxes"].shape != found["boxes"].shape or not torch.equal(
            default_found["boxes"], found["boxes"]
        )
    assert total > 10


def test_keypoints_stay_within_the_last_pixel_of_their_box():
    settings = ["MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", [16, 16]]
    settings += ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2, "MODEL.ROI_HEADS.SCORE_THRESH", 0.0]
    model = detector("keypoint_rcnn_R_50_FPN_1x", settings)
    with torch.no_grad():
        found = model([to_float_tensor(smooth_image(90, 100))])[0]
    assert len(found["boxes"]) > 3
    corners = found["boxes"][:, None] - torch.tensor([0, 0, 1, 1])
    points = found["keypoints"][..., :2]
    assert (points >= corners[..., :2] - 1e-3).all()
    assert (points <= torch.maximum(corners[..., 2:], corners[..., :2] + 1) + 1e-3).all()


def test_retinanet_uses_the_convention():
    model = build_detection_model(
        load_config(
            "configs/retinanet_R_50_FPN_1x.yaml", ["MODEL.CONVENTION", "maskrcnn-benchmark"]
        )
    )
    assert model.rpn.post_processor.convention is CONVENTIONS["maskrcnn-benchmark"]
    assert model.convention is CONVENTIONS["maskrcnn-benchmark"]


def test_unknown_convention_is_rejected():
    config = load_config(None, ["MODEL.CONVENTION", "torch"])
    with pytest.raises(
        ConfigError,
        match="MODEL.CONVENTION: expected one of detops, maskrcnn-benchmark, detectron2, got torch",
    ):
        build_detection_model(config)
