"""Our networks with torchvision's weights give torchvision's detections."""

import re
from importlib.util import find_spec

import pytest
import torch
import torchvision_networks as networks

from detops.config import load_config
from detops.engine import load_weights_into
from detops.modeling import build_detection_model


def later(kind, module):
    """A network with a head that this checkout may not have."""
    missing = find_spec(f"detops.modeling.roi_heads.{module}") is None
    return pytest.param(kind, marks=pytest.mark.skipif(missing, reason=f"no {module} head"))


KINDS = ["fasterrcnn", "retinanet", later("maskrcnn", "mask"), later("keypointrcnn", "keypoint")]


def ours(kind, *overrides):
    sizes = ["INPUT.MIN_SIZE_TEST", 128, "INPUT.MAX_SIZE_TEST", 192]
    cfg = load_config(f"configs/{networks.CONFIGS[kind]}.yaml", [*sizes, *overrides])
    return build_detection_model(cfg).eval()


@pytest.fixture(scope="module", params=KINDS)
def case(request):
    """The kind of network, torchvision's, its detections, and ours."""
    kind, pictures = request.param, networks.images()
    net = networks.liven(networks.build(kind), pictures)
    model = ours(kind)
    report = load_weights_into(model, net.state_dict(), complete=True)
    assert report.missing == report.unused == ()
    with torch.no_grad():
        return kind, net, net(pictures), model(pictures)


def counterparts(mine, other):
    """Where each of our detections stands among theirs."""
    close = (mine["scores"][:, None] - other["scores"]).abs() < 1e-4
    close &= mine["labels"][:, None] == other["labels"]
    close &= ((mine["boxes"][:, None] - other["boxes"]).abs() < 0.01).all(dim=2)
    assert (close.sum(dim=0) == 1).all() and (close.sum(dim=1) == 1).all()
    return close.long().argmax(dim=1)


def test_detections_are_torchvisions(case):
    kind, _, theirs, found = case
    assert sum(len(detection["scores"]) for detection in theirs) >= 200
    for mine, other in zip(found, theirs, strict=True):
        assert len(other["labels"].unique()) > (0 if kind == "keypointrcnn" else 5)
        assert len(mine["scores"]) == len(other["scores"])
        # The same order, but for scores that are equal within rounding.
        torch.testing.assert_close(mine["scores"], other["scores"], rtol=0, atol=1e-4)
        order = counterparts(mine, other)
        if "masks" in other:
            assert mine["masks"].shape == other["masks"].shape
            a, b = mine["masks"].flatten(1), (other["masks"][order] > 0.5).flatten(1)
            iou = (a & b).sum(dim=1) / (a | b).sum(dim=1).clamp(min=1)
            assert b.any(dim=1).float().mean() > 0.9
            assert (iou[b.any(dim=1)] > 0.99).all() and not a[~b.any(dim=1)].any()
        if "keypoints" in other:
            distance = (mine["keypoints"] - other["keypoints"][order]).abs().amax(dim=2)
            scores = (mine["keypoints_scores"] - other["keypoints_scores"][order]).abs()
            # A heat map may have two peaks of one height.
            assert (distance < 0.01).float().mean() > 0.99 and (scores < 1e-3).all()


def test_names_of_older_versions(case):
    kind, net, _, _ = case
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
        # Without a version, torchvision takes the names for its older ones.
        networks.build(kind).load_state_dict(state)
        report = load_weights_into(ours(kind), state, complete=True)
    assert report.loaded > 270


def test_a_class_0_that_is_used():
    """Whoever counts classes from 0 in torchvision's RetinaNet has one more here."""
    pictures = networks.images()
    net = networks.liven(networks.build("retinanet", num_classes=6), pictures)
    net.head.classification_head.cls_logits.bias.data.fill_(-4)
    model = ours("retinanet", "MODEL.RETINANET.NUM_CLASSES", 7)
    load_weights_into(model, net.state_dict(), complete=True)
    with torch.no_grad():
        theirs, found = net(pictures), model(pictures)
    for mine, other in zip(found, theirs, strict=True):
        assert (other["labels"] == 0).sum() > 10
        counterparts(mine, other | {"labels": other["labels"] + 1})
