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


def networks_of(*kinds):
    slowest = "maskrcnn", "keypointrcnn"
    params = [
        pytest.param(kind, marks=pytest.mark.exhaustive if kind in slowest else ())
        for kind in kinds
    ]
    return pytest.mark.parametrize("case", params, indirect=True, scope="module")


all_networks = networks_of("fasterrcnn", "retinanet", "maskrcnn", "keypointrcnn")


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
    kind, pictures = request.param, networks.images()
    # The keypoint head needs seconds for a hundred detections.
    few = kind == "keypointrcnn"
    net = networks.build(kind, **({"box_detections_per_img": 4} if few else {}))
    networks.liven(net, pictures)
    model = ours(kind, *(["MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 4] if few else []))
    report = load_weights_into(model, net.state_dict(), complete=True)
    assert report.missing == report.unused == ()
    maps = []
    for name, layer in [*net.named_modules(), *model.named_modules()]:
        if name.endswith(("keypoint_predictor", "keypoint.predictor")):
            layer.register_forward_hook(lambda layer, inputs, output: maps.append(output))
    with torch.no_grad():
        return SimpleNamespace(
            kind=kind, net=net, theirs=net(pictures), found=model(pictures), heat_maps=maps
        )


def counterparts(mine, other):
    """Returns the index of each of our detections among theirs."""
    close = (mine["scores"][:, None] - other["scores"]).abs() < 1e-4
    close &= mine["labels"][:, None] == other["labels"]
    close &= ((mine["boxes"][:, None] - other["boxes"]).abs() < 0.01).all(dim=2)
    assert (close.sum(dim=0) == 1).all() and (close.sum(dim=1) == 1).all()
    return close.long().argmax(dim=1)


@all_networks
def test_detections_match_torchvision(case):
    counts = [len(detection["scores"]) for detection in case.theirs]
    keypoints = case.kind == "keypointrcnn"
    assert sum(counts) >= (8 if keypoints else 200)
    for mine, other in zip(case.found, case.theirs, strict=True):
        assert len(other["labels"].unique()) > (0 if keypoints else 20)
        assert len(mine["scores"]) == len(other["scores"])
        # The order is the same, except for scores that are equal within rounding.
        torch.testing.assert_close(mine["scores"], other["scores"], rtol=0, atol=1e-4)
        counterparts(mine, other)


def between_pixels(boxes):
    """Returns which masks a rounding error may paste one pixel further.

    A mask of 28 x 28 is pasted with a border of one cell, between the corners of the box widened
    by that border. Both corners are truncated to whole pixels.
    """
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * 30 / 28
    corners = torch.cat([centre - half, centre + half], dim=1)
    return ((corners - corners.round()).abs() < 1e-3).any(dim=1)


@networks_of("maskrcnn")
def test_masks_match_torchvision(case):
    for mine, other in zip(case.found, case.theirs, strict=True):
        assert mine["masks"].shape == other["masks"].shape
        a = mine["masks"].flatten(1)
        b = (other["masks"][counterparts(mine, other)] > 0.5).flatten(1)
        some = b.any(dim=1)
        assert some.float().mean() > 0.9 and not a[~some].any()
        iou = (a & b).sum(dim=1) / (a | b).sum(dim=1)
        either = between_pixels(mine["boxes"])
        assert (iou[some & ~either] > 0.99).all() and either.float().mean() < 0.05


@networks_of("keypointrcnn")
def test_heat_maps_match_torchvision(case):
    """Compares only the heat maps: our keypoints lie between cells, unlike those of torchvision."""
    counts = [len(detection["scores"]) for detection in case.theirs]
    theirs, ours = (maps.split(counts) for maps in case.heat_maps)
    for i, (mine, other) in enumerate(zip(case.found, case.theirs, strict=True)):
        wanted = theirs[i][counterparts(mine, other)]
        assert wanted.std() > 1
        torch.testing.assert_close(ours[i], wanted, rtol=0, atol=1e-3)


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
    pictures = networks.images()
    net = networks.liven(networks.build("retinanet", num_classes=6), pictures, class_0=True)
    model = ours("retinanet", "MODEL.RETINANET.NUM_CLASSES", 7)
    load_weights_into(model, net.state_dict(), complete=True)
    with torch.no_grad():
        theirs, found = net(pictures), model(pictures)
    for mine, other in zip(found, theirs, strict=True):
        assert (other["labels"] == 0).sum() > 10
        counterparts(mine, other | {"labels": other["labels"] + 1})
