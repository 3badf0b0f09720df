"""Our networks with torchvision weights give the detections of torchvision."""

import re
from types import SimpleNamespace

import pytest
import torch
import torchvision_networks as networks

from detops.config import load_config
from detops.engine import load_weights_into
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow


def with_networks(*kinds):
    slowest = "maskrcnn", "keypointrcnn"
    params = [
        pytest.param(kind, marks=pytest.mark.exhaustive if kind in slowest else ())
        for kind in kinds
    ]
    return pytest.mark.parametrize("case", params, indirect=True, scope="module")


all_networks = with_networks("fasterrcnn", "retinanet", "maskrcnn", "keypointrcnn")


def ours(kind, *overrides):
    sizes = ["INPUT.MIN_SIZE_TEST", 128, "INPUT.MAX_SIZE_TEST", 192]
    cfg = load_config(f"configs/{networks.CONFIGS[kind]}.yaml", [*sizes, *overrides])
    return build_detection_model(cfg).eval()


@pytest.fixture(scope="module")
def case(request):
    """Loads the weights of a torchvision network into ours and runs both.

    Uses one thread: rounding of other sums would drop some proposals of a random network.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    kind, test_images = request.param, networks.images()
    # The keypoint head needs seconds for a hundred detections.
    few_detections = kind == "keypointrcnn"
    net = networks.build(kind, **({"box_detections_per_img": 4} if few_detections else {}))
    networks.calibrate(net, test_images)
    model = ours(kind, *(["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 4] if few_detections else []))
    report = load_weights_into(model, net.state_dict(), complete=True)
    assert report.missing == report.unused == ()
    maps = []
    for name, layer in [*net.named_modules(), *model.named_modules()]:
        if name.endswith(("keypoint_predictor", "keypoint.predictor")):
            layer.register_forward_hook(lambda layer, inputs, output: maps.append(output))
    with torch.no_grad():
        return SimpleNamespace(
            kind=kind, net=net, theirs=net(test_images), found=model(test_images), heat_maps=maps
        )


def match_detections(detection, expected):
    """Returns the index of each of our detections among theirs."""
    matches = (detection["scores"][:, None] - expected["scores"]).abs() < 1e-4
    matches &= detection["labels"][:, None] == expected["labels"]
    matches &= ((detection["boxes"][:, None] - expected["boxes"]).abs() < 0.01).all(dim=2)
    assert (matches.sum(dim=0) == 1).all() and (matches.sum(dim=1) == 1).all()
    return matches.long().argmax(dim=1)


@all_networks
def test_detections_match_torchvision(case):
    counts = [len(detection["scores"]) for detection in case.theirs]
    keypoints = case.kind == "keypointrcnn"
    assert sum(counts) >= (8 if keypoints else 200)
    for detection, expected in zip(case.found, case.theirs, strict=True):
        assert len(expected["labels"].unique()) > (0 if keypoints else 20)
        assert len(detection["scores"]) == len(expected["scores"])
        # The order is the same, except for scores that are equal within rounding.
        torch.testing.assert_close(detection["scores"], expected["scores"], rtol=0, atol=1e-4)
        match_detections(detection, expected)


def may_shift_by_a_pixel(boxes):
    """Returns which masks a rounding error may paste one pixel further.

    A mask of 28 x 28 is pasted with a border of one cell, between the corners of the box widened
    by that border. Both corners are truncated to whole pixels.
    """
    centre, half_sides = (
        (boxes[:, :2] + boxes[:, 2:]) / 2,
        (boxes[:, 2:] - boxes[:, :2]) / 2 * 30 / 28,
    )
    corners = torch.cat([centre - half_sides, centre + half_sides], dim=1)
    return ((corners - corners.round()).abs() < 1e-3).any(dim=1)


@with_networks("maskrcnn")
def test_masks_match_torchvision(case):
    for detection, expected in zip(case.found, case.theirs, strict=True):
        assert detection["masks"].shape == expected["masks"].shape
        a = detection["masks"].flatten(1)
        b = (expected["masks"][match_detections(detection, expected)] > 0.5).flatten(1)
        visible = b.any(dim=1)
        assert visible.float().mean() > 0.9 and not a[~visible].any()
        iou = (a & b).sum(dim=1) / (a | b).sum(dim=1)
        ambiguous = may_shift_by_a_pixel(detection["boxes"])
        assert (iou[visible & ~ambiguous] > 0.99).all() and ambiguous.float().mean() < 0.05


@with_networks("keypointrcnn")
def test_heat_maps_match_torchvision(case):
    """Compares only the heat maps: our keypoints lie between cells, unlike those of torchvision."""
    counts = [len(detection["scores"]) for detection in case.theirs]
    theirs, ours = (maps.split(counts) for maps in case.heat_maps)
    for i, (detection, expected) in enumerate(zip(case.found, case.theirs, strict=True)):
        expected_maps = theirs[i][match_detections(detection, expected)]
        assert expected_maps.std() > 1
        torch.testing.assert_close(ours[i], expected_maps, rtol=0, atol=1e-3)


@all_networks
def test_weight_names_of_older_versions_load(case):
    kind, net = case.kind, case.net
    older = (
        (r"(inner|layer)_blocks\.(\d)\.0\.", r"\1_blocks.\2."),
        (r"rpn\.head\.conv\.0\.0\.", "rpn.head.conv."),
        (r"mask_head\.(\d)\.0\.", lambda m: f"mask_head.mask_fcn{int(m[1]) + 1}."),
        (r"_head\.conv\.(\d)\.0\.", lambda m: f"_head.conv.{2 * int(m[1])}."),
    )
    state = {}
    for key, value in net.state_dict().items():
        for pattern, replacement in older:
            key = re.sub(pattern, replacement, key)
        state[key] = value.to("meta")
    assert any(key not in state for key in net.state_dict())
    with torch.device("meta"):
        # Without a version, torchvision assumes its older names.
        networks.build(kind).load_state_dict(state)
        report = load_weights_into(ours(kind), state, complete=True)
    assert report.loaded > 270


def test_retinanet_class_0_becomes_class_1():
    """Classes counted from 0 in a torchvision RetinaNet are one higher here."""
    test_images = networks.images()
    net = networks.calibrate(networks.build("retinanet", num_classes=6), test_images, class_0=True)
    model = ours("retinanet", "MODEL.RETINANET.NUM_CLASSES", 7)
    load_weights_into(model, net.state_dict(), complete=True)
    with torch.no_grad():
        theirs, found = net(test_images), model(test_images)
    for detection, expected in zip(found, theirs, strict=True):
        assert (expected["labels"] == 0).sum() > 10
        match_detections(detection, expected | {"labels": expected["labels"] + 1})
