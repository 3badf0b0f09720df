"""Our networks with torchvision's weights give torchvision's detections."""

import pytest
import torch
import torchvision_networks

from detops.config import load_config
from detops.engine import load_weights_into
from detops.modeling import build_detection_model

CASES = ["fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet"]


@pytest.fixture(scope="module", params=CASES)
def pair(request):
    kind = request.param
    pictures = torchvision_networks.images()
    net = torchvision_networks.liven(torchvision_networks.build(kind), pictures)
    with torch.no_grad():
        expected = net(pictures)
    cfg = load_config(
        f"configs/{torchvision_networks.CONFIGS[kind]}.yaml",
        ["INPUT.MIN_SIZE_TEST", 160, "INPUT.MAX_SIZE_TEST", 256],
    )
    model = build_detection_model(cfg).eval()
    report = load_weights_into(model, net.state_dict(), complete=True)
    with torch.no_grad():
        return model(pictures), expected, report


def same_order(ours, theirs):
    """Where each of our detections stands among theirs: equal but for near-equal scores."""
    close = (ours["scores"][:, None] - theirs["scores"]).abs() < 1e-4
    close &= ours["labels"][:, None] == theirs["labels"]
    close &= ((ours["boxes"][:, None] - theirs["boxes"]).abs() < 0.01).all(dim=2)
    assert (close.sum(dim=0) == 1).all() and (close.sum(dim=1) == 1).all()
    return close.long().argmax(dim=1)


def test_detections_are_torchvisions(pair):
    ours, theirs, report = pair
    assert report.missing == report.unused == ()
    assert sum(len(found["scores"]) for found in theirs) >= 200
    for mine, other in zip(ours, theirs, strict=True):
        # People alone have keypoints.
        assert len(set(other["labels"].tolist())) > (0 if "keypoints" in other else 20)
        assert len(mine["scores"]) == len(other["scores"])
        order = same_order(mine, other)
        torch.testing.assert_close(mine["scores"], other["scores"], rtol=0, atol=1e-4)
        assert (order - torch.arange(len(order))).abs().max() <= 2
        assert set(mine) == set(other)
        if "masks" in mine:
            same_masks(mine["masks"], other["masks"][order] >= 0.5)
        if "keypoints" in mine:
            same_keypoints(mine, {key: value[order] for key, value in other.items()})


def same_masks(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == torch.bool
    either = (ours | theirs).sum((1, 2, 3))
    assert (either > 0).float().mean() > 0.9
    assert ((ours & theirs).sum((1, 2, 3)) >= 0.99 * either).all()


def same_keypoints(ours, theirs):
    """Where their maximum is near the largest cell, as ours is, and the box not small."""
    assert (ours["keypoints"][..., 2] == 1).all()
    close = ours["keypoints_scores"] >= theirs["keypoints_scores"] - 1e-3
    same = ((ours["keypoints"] - theirs["keypoints"]).abs() < 0.01).all(dim=2)
    assert close.float().mean() > 0.9, close.float().mean()
    print(close.float().mean(), same.float().mean())
