# SPDX-License-Identifier: MIT
"""Published torchvision weights by name, from the torch.hub cache."""

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

cache, cache_path = networks.cache, networks.cache_path  # a fixture, and the path of a file


def test_all_names_exist_in_torchvision():
    assert all(get_model_weights(network).DEFAULT.url for network in DETECTORS + BODIES)


@pytest.mark.slow
def test_published_detector_loads_by_name(cache):
    """Caches random weights instead of the published ones."""
    net = networks.build("fasterrcnn")
    torch.save(net.state_dict(), cache_path("fasterrcnn_resnet50_fpn"))
    model, other = (
        build_detection_model(load_config("configs/torchvision_faster_rcnn_R_50_FPN.yaml"))
        for _ in range(2)
    )
    report = load_weights_into(model, "torchvision/fasterrcnn_resnet50_fpn", complete=True)
    assert report.missing == report.unused == () and report.loaded > 270
    # Published detectors use an epsilon of 0, independent of the config.
    load_weights_into(other, net.state_dict(), complete=True, batch_norm_epsilon=0.0)
    expected = other.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
def test_published_body_is_read_by_name(cache):
    from torchvision.models import resnet18

    net = resnet18(weights=None)
    torch.save(net.state_dict(), cache_path("resnet18"))
    config = ["MODEL.BACKBONE.CONV_BODY", "R-50-FPN"]
    state, epsilon = published_weights("torchvision/resnet18")
    assert epsilon == 1e-5 and torch.equal(state["conv1.weight"], net.conv1.weight)
    model = build_detection_model(load_config("configs/faster_rcnn_R_50_FPN_1x.yaml", config))
    with pytest.raises(CheckpointError, match="torchvision/resnet18: does not fit the model"):
        load_weights_into(model, "torchvision/resnet18")


def test_failed_download_names_the_url_and_the_file(cache, capsys):
    file = cache_path("retinanet_resnet50_fpn")
    with pytest.raises(CheckpointError) as caught:
        published_weights("torchvision/retinanet_resnet50_fpn")
    assert (
        f"(<urlopen error no network>): put https://download.pytorch.org/models/{file.name} at"
        in str(caught.value)
    )
    assert str(file) in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\3\4"])
def test_damaged_cached_file_is_rejected(cache, content):
    file = cache_path("resnet50")
    file.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=f"{file.name}: damaged"):
        published_weights("torchvision/resnet50")


@pytest.mark.parametrize("name", ["", "ssd300_vgg16", "fasterrcnn_resnet50_fpn_v2", "../resnet50"])
def test_unpublished_names_are_rejected(cache, name):
    with pytest.raises(CheckpointError, match=f"torchvision/{name}: expected one of"):
        published_weights(f"torchvision/{name}")


def test_local_file_takes_precedence_over_a_published_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_published("torchvision/resnet50") and not is_published("my/torchvision/resnet50")
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "resnet50").write_bytes(b"")
    assert not is_published("torchvision/resnet50")
