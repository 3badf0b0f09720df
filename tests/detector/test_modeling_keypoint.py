import math

import pytest
import torch
from torchvision.models.detection import roi_heads as torchvision_heads

from detops.config import ConfigError, load_config
from detops.modeling import build_detection_model
from detops.modeling.poolers import Pooler
from detops.modeling.roi_heads.keypoint import (
    KeypointHead,
    KeypointRCNNFeatureExtractor,
    KeypointRCNNPredictor,
)
from detops.modeling.roi_heads.keypoint.loss import keypoint_cells, keypoint_loss

pytestmark = pytest.mark.slow

SMALL = [
    "MODEL.KEYPOINT_ON", True, "MODEL.ROI_KEYPOINT_HEAD.SHARE_BOX_FEATURE_EXTRACTOR", False,
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_SCALES", (0.25, 0.125, 0.0625),
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION", 7, "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION", 28,
    "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO", 2,
    "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8, 16), "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 3,
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32,
    "INPUT.MIN_SIZE_TRAIN", (64, 80), "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TRAIN", 96,
]  # fmt: skip


@pytest.fixture(autouse=True)
def chdir_to_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def small_detector(*overrides):
    torch.manual_seed(0)
    return build_detection_model(load_config("configs/tree_crowns.yaml", [*SMALL, *overrides]))


def example():
    images = [torch.rand(3, 60, 70), torch.rand(3, 53, 51)]
    boxes = [
        torch.tensor([[4.0, 5, 30, 40], [20, 10, 66, 55]]),
        torch.tensor([[8.0, 9, 40, 44]]),
    ]
    targets = []
    for b in boxes:
        positions = torch.rand(len(b), 3, 2)
        points = b[:, None, :2] + positions * (b[:, None, 2:] - b[:, None, :2])
        visibility = torch.tensor([2.0, 1.0, 0.0]).expand(len(b), 3)
        targets.append(
            {
                "boxes": b,
                "labels": torch.ones(len(b), dtype=torch.int64),
                "keypoints": torch.cat([points, visibility.unsqueeze(2)], 2),
            }
        )
    return images, targets


BOXES = torch.tensor([[0.0, 0, 10, 20], [5, 5, 8.5, 9], [2.25, 0, 30, 12]])


def some_keypoints():
    points = torch.rand(3, 40, 3) * torch.tensor([16.0, 16, 2]) - torch.tensor([2.0, 2, 1])
    points[0, :4, :2] = torch.tensor([[10.0, 20], [0, 0], [10, 3], [10.001, 3]])
    points[1, 0, 0] = math.nan
    points[1, 1, 1] = math.inf
    points[0, :4, 2], points[1, :2, 2] = 1, 1
    return points


def test_keypoint_cells_match_torchvision():
    points = some_keypoints()
    cells, valid = torchvision_heads.keypoints_to_heatmap(points.nan_to_num(-9), BOXES, 7)
    assert 0.1 < valid.float().mean() < 0.9
    expected = torch.where(valid > 0, cells, -1)
    assert torch.equal(keypoint_cells(points, BOXES, 7), expected)


def test_keypoint_cells_equal_hand_computed_ones():
    box, points = BOXES[:1], torch.tensor([[[4.9, 10.1, 2], [10, 20, 1], [5, 5, 0], [-1, 5, 2]]])
    assert keypoint_cells(points, box, 10).tolist() == [[5 * 10 + 4, 99, -1, -1]]


def test_keypoint_loss_and_gradient_equal_a_slow_loop():
    logits = torch.randn(3, 4, 5, 5, requires_grad=True)
    cells = torch.tensor([[3, -1, 24, 0], [-1, -1, -1, -1], [7, 7, -1, 1]])
    loss = keypoint_loss(logits, cells)
    expected, count = 0, 0
    for k in range(3):
        for n in range(4):
            if cells[k, n] >= 0:
                p = logits[k, n].flatten().exp() / logits[k, n].exp().sum()
                expected, count = expected - p[cells[k, n]].log(), count + 1
    torch.testing.assert_close(loss, expected / count)
    gradients = [torch.autograd.grad(v, logits)[0] for v in (loss, expected / count)]
    torch.testing.assert_close(*gradients)


def test_keypoint_loss_matches_torchvision():
    logits, points = torch.randn(3, 40, 7, 7), some_keypoints().nan_to_num(-9)
    matched = torch.tensor([2, 0, 1])
    theirs = torchvision_heads.keypointrcnn_loss(logits, [BOXES], [points], [matched])
    ours = keypoint_loss(logits, keypoint_cells(points[matched], BOXES, 7))
    torch.testing.assert_close(ours, theirs)


def head():
    extractor = KeypointRCNNFeatureExtractor(
        in_channels=4, pooler=Pooler(3, [0.25, 0.125], 2), layers=[8, 6]
    )
    predictor = KeypointRCNNPredictor(6, 5)
    return KeypointHead(feature_extractor=extractor, predictor=predictor, resolution=12)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("positives", [0, 2])
def test_loss_without_visible_keypoints_is_0_with_gradients(autocast, positives):
    """Every parameter gets a gradient: parallel training synchronises each of them."""
    keypoint_head = head().train()
    features = [torch.rand(1, 4, s, s).to(memory_format=torch.channels_last) for s in (16, 8)]
    regions = [{"boxes": BOXES[:positives], "truth": torch.zeros(positives, dtype=torch.int64)}]
    target = {"keypoints": torch.zeros(1, 5, 3)}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _, losses = keypoint_head(features, regions, [target])
    assert losses["loss_kp"] == 0
    losses["loss_kp"].backward()
    for name, parameter in keypoint_head.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_keypoint_loss_uses_only_boxes_with_visible_keypoints():
    keypoint_head = head().train()
    features = [torch.rand(2, 4, s, s) for s in (16, 8)]
    points = torch.zeros(2, 5, 3)
    points[0, 2], points[1, 3] = torch.tensor([6.0, 7, 2]), torch.tensor([28.0, 2, 1])
    regions = [
        {"boxes": BOXES, "truth": torch.tensor([0, 0, 0])},
        {"boxes": BOXES[1:], "truth": torch.tensor([1, 1])},
    ]
    _, losses = keypoint_head(features, regions, [{"keypoints": points}] * 2)
    chosen = [BOXES, BOXES[2:]]
    logits = keypoint_head.predictor(keypoint_head.feature_extractor(features, chosen))
    cells = torch.cat(
        [keypoint_cells(points[[0] * 3], BOXES, 12), keypoint_cells(points[1:], BOXES[2:], 12)]
    )
    torch.testing.assert_close(losses["loss_kp"], keypoint_loss(logits, cells))
    assert logits.shape == (4, 5, 12, 12)


def test_no_detections_give_empty_keypoints():
    found, losses = head().eval()([torch.rand(1, 4, 8, 8)] * 2, [{"boxes": torch.zeros(0, 4)}])
    assert found[0]["keypoints"].shape == (0, 5, 3) and losses == {}
    assert found[0]["keypoints_scores"].shape == (0, 5)


def test_keypoint_detector_trains_and_detects():
    model = small_detector("MODEL.ROI_HEADS.SCORE_THRESH", 0.0)
    images, targets = example()
    for autocast in (False, True):
        model.train().zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = model(images, targets)
        assert losses["loss_kp"].dtype == torch.float32 and losses["loss_kp"] > 0
        losses["loss_kp"].backward()
        for name, parameter in model.roi_heads.keypoint.named_parameters():
            assert parameter.grad.isfinite().all() and parameter.grad.any(), name
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = model.eval()(images)
        for detection in found:
            boxes, points = detection["boxes"], detection["keypoints"]
            assert len(boxes) and points.shape == (len(boxes), 3, 3)
            assert detection["keypoints_scores"].shape == points.shape[:2]
            # Keypoints are in pixels of the image, within their boxes.
            assert (points[..., :2] >= boxes[:, None, :2] - 1e-3).all()
            assert (points[..., :2] <= boxes[:, None, 2:] + 1e-3).all()
            assert (points[..., 2] == 1).all()


def test_training_lowers_the_keypoint_loss():
    """The loss starts at that of a guess, the log of the number of cells."""
    model = small_detector("INPUT.MIN_SIZE_TRAIN", (64,)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    images, targets = example()
    history = []
    for _ in range(30):
        losses = model(images, targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        history.append(losses["loss_kp"].item())
    assert history[0] > 0.8 * math.log(28 * 28) and history[-1] < 0.6 * history[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: {"keypoints": k[:, :2]}, r"keypoints'\]: expected floating point \[2, 3, 3\]"),
        (lambda k: {"keypoints": k[:1]}, r"targets\[0\].*got torch.float32 \[1, 3, 3\]"),
        (lambda k: {"keypoints": k.long()}, "got torch.int64"),
        (lambda k: {"keypoints": 3}, r"targets\[0\]: expected a tensor 'keypoints'"),
    ],
)
def test_invalid_keypoint_targets_are_rejected(change, message):
    images, targets = example()
    targets[0] |= change(targets[0]["keypoints"])
    with pytest.raises(ValueError, match=message):
        small_detector().train()(images, targets)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("PREDICTOR", "x", "unknown MODEL.ROI_KEYPOINT_HEAD.PREDICTOR 'x'; known: KeypointRCNN"),
        (
            "RESOLUTION",
            56,
            "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION: expected 28 .feature maps of 7, times 4 in ",
        ),
        (
            "SHARE_BOX_FEATURE_EXTRACTOR",
            True,
            "expected False, because FPN2MLPFeatureExtractor returns vectors",
        ),
    ],
)
def test_invalid_keypoint_configs_are_rejected(key, value, message):
    with pytest.raises(ConfigError, match=message):
        small_detector(f"MODEL.ROI_KEYPOINT_HEAD.{key}", value)
