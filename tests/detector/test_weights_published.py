# SPDX-License-Identifier: MIT
"""Weights that torchvision publishes, by their name, from the cache of torch.hub."""

import pytest
import torch
import torchvision_networks as networks
from torchvision.models import get_model_weights

from detops.config import load_config
from detops.engine import CheckpointError, DamagedCheckpointError, load_weights_into
from detops.engine.weights_torchvision import (
    BODIES,
    DETECTORS,
    is_published,
    published_weights,
)
from detops.modeling import build_detection_model

cache, cached = networks.cache, networks.cached  # a fixture, and the place of a file


def test_all_names_are_torchvisions():
    assert all(get_model_weights(network).DEFAULT.url for network in DETECTORS + BODIES)


@pytest.mark.slow
def test_a_detector_by_its_name(cache):
    """Random weights in the place of the published ones."""
    net = networks.build("fasterrcnn")
    torch.save(net.state_dict(), cached("fasterrcnn_resnet50_fpn"))
    model, other = (
        build_detection_model(load_config("configs/torchvision_faster_rcnn_R_50_FPN.yaml"))
        for _ in range(2)
    )
    report = load_weights_into(model, "torchvision/fasterrcnn_resnet50_fpn", complete=True)
    assert report.missing == report.unused == () and report.loaded > 270
    # Published detectors add nothing to the variance, whatever the config says of others.
    load_weights_into(other, net.state_dict(), complete=True, batch_norm_epsilon=0.0)
    expected = other.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
def test_a_body_by_its_name(cache):
    from torchvision.models import resnet18

    net = resnet18(weights=None)
    torch.save(net.state_dict(), cached("resnet18"))
    config = ["MODEL.BACKBONE.CONV_BODY", "R-50-FPN"]
    state, epsilon = published_weights("torchvision/resnet18")
    assert epsilon == 1e-5 and torch.equal(state["conv1.weight"], net.conv1.weight)
    model = build_detection_model(load_config("configs/faster_rcnn_R_50_FPN_1x.yaml", config))
    with pytest.raises(CheckpointError, match="torchvision/resnet18: does not fit the model"):
        load_weights_into(model, "torchvision/resnet18")


def test_what_cannot_be_downloaded(cache, capsys):
    file = cached("retinanet_resnet50_fpn")
    with pytest.raises(CheckpointError) as caught:
        published_weights("torchvision/retinanet_resnet50_fpn")
    assert (
        f"(<urlopen error no network>): put https://download.pytorch.org/models/{file.name} at"
        in str(caught.value)
    )
    assert str(file) in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\3\4"])
def test_a_damaged_file_in_the_cache(cache, content):
    file = cached("resnet50")
    file.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=f"{file.name}: damaged"):
        published_weights("torchvision/resnet50")


@pytest.mark.parametrize("name", ["", "ssd300_vgg16", "fasterrcnn_resnet50_fpn_v2", "../resnet50"])
def test_other_names_are_refused(cache, name):
    with pytest.raises(CheckpointError, match=f"torchvision/{name}: torchvision's weights are"):
        published_weights(f"torchvision/{name}")


def test_a_file_of_that_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_published("torchvision/resnet50") and not is_published("my/torchvision/resnet50")
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "resnet50").write_bytes(b"")
    assert not is_published("torchvision/resnet50")
