# SPDX-License-Identifier: MIT
"""`detops serve` from its start to the signal that ends it."""

import logging
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from page_server import encoded, make_detector, send  # noqa: E402
from paths import environment

from detops import cli, demo_masks  # noqa: E402
from detops.cli.options import DEFAULT_WEIGHTS, SHAPES_WEIGHTS  # noqa: E402
from detops.data import Shapes, load_image  # noqa: E402
from detops.engine import detect as detect_module  # noqa: E402
from detops.serve import command  # noqa: E402

NEEDS_ASSETS = pytest.mark.skipif(
    not DEFAULT_WEIGHTS.exists(), reason="needs the demonstration's files"
)


@pytest.mark.slow
@NEEDS_ASSETS
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive)],
)
def test_server_runs_until_a_signal(number, status):
    process = subprocess.Popen(
        [sys.executable, "-m", "detops", "serve", "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        port = int(address.rstrip("/").rpartition(":")[2])
        _, _, about = send(port, "GET", "/api/about")
        assert [model["name"] for model in about["models"]] == ["tree_crowns", "shapes"]
        path = "/api/detect?model=shapes"
        assert send(port, "POST", path, encoded())[0] == 200
        process.send_signal(number)
        out, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == status
    assert out == ""
    assert error.splitlines() == [
        "tree_crowns: detects tree",
        "shapes: detects ellipse, rectangle, triangle, and 3 more",
        f"detops: stopped by {number.name}",
    ]


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command without requests; returns its status, detectors, app and output."""
    opened, apps = [], []

    def open_detector(path, cfg, device):
        opened.append((Path(path).name, cfg and cfg.MODEL.META_ARCHITECTURE, device))
        return make_detector()

    monkeypatch.setattr(detect_module, "open_detector", open_detector)
    monkeypatch.setattr(
        command.uvicorn.Server, "run", lambda server, sockets: apps.append(server.config.app.app)
    )

    def run(*arguments):
        opened.clear()
        status = cli.main(["serve", "--port", "0", *arguments])
        captured = capsys.readouterr()
        return status, list(opened), apps[-1] if apps else None, captured

    return run


def test_models_are_named_and_get_their_configs(run):
    config = "configs/torchvision_mask_rcnn_R_50_FPN.yaml"
    weights = ("--weights", "a.pt", "--weights", "runs/b/weights.pt", "--weights", "x/a.onnx")
    status, opened, _, captured = run(*weights)
    assert status == 0 and [name for name, *_ in opened] == ["a.pt", "weights.pt", "a.onnx"]
    assert captured.err.splitlines() == [f"{n}: detects cat, dog" for n in ("a", "b", "a 2")]
    status, opened, *_ = run(*weights, "--config", config, "--device", "cpu")
    assert status == 0 and [about for _, *about in opened] == [["GeneralizedRCNN", "cpu"]] * 3
    status, _, _, captured = run(*weights, "--config", config, "--config", config)
    assert status == 2 and "one for each of the 3 --weights, got 2" in captured.err
    status, _, _, captured = run("--config", "missing.yaml")
    assert status == 2 and "missing.yaml: no such config file" in captured.err


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a.pt", "x/a.pt", "a 2.pt"], ["a", "a 2", "a 2 2"]),
        (["a 2.pt", "a.pt", "x/a.pt", "y/a.pt"], ["a 2", "a", "a 3", "a 4"]),
        (["a.pt", "a/weights.pt", "weights.pt"], ["a", "a 2", "weights"]),
    ],
)
def test_model_names_are_unique(paths, names):
    assert command.unique_names([Path(path) for path in paths]) == names


def test_sample_image_equals_the_demo_image():
    pytest.importorskip("skimage")
    scene = Shapes(length=demo_masks.SCENE_INDEX + 1, **demo_masks.SCENE, **demo_masks.TEST_SPLIT)
    assert torch.equal(load_image(command.shapes_sample()), scene.image(demo_masks.SCENE_INDEX))


def test_shipped_models_are_served_by_default(run):
    _, opened, _, captured = run()
    assert [name for name, *_ in opened] == [DEFAULT_WEIGHTS.name, SHAPES_WEIGHTS.name]
    assert [line.partition(":")[0] for line in captured.err.splitlines()] == [
        "tree_crowns",
        "shapes",
    ]


def test_logging_handlers_stay_open(run):
    with open("/dev/null", "w") as stream:
        handler = logging.StreamHandler(stream)
        handler.close = stream.close  # as those of Abseil do
        run()
        assert not stream.closed


def test_public_host_is_allowed_with_a_warning(run):
    _, _, app, captured = run()
    assert app.hosts == ("localhost", "127.0.0.1", "[::1]")
    assert "warning" not in captured.err
    _, _, app, captured = run("--host", "0.0.0.0", "--allow-host", "photos.example")
    assert app.hosts == ("localhost", "127.0.0.1", "[::1]", "photos.example")
    assert captured.out.startswith("http://localhost:")
    assert "warning: others in the network can reach this page" in captured.err


def test_unusable_address_is_reported(run):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        status, opened, _, captured = run("--port", str(port))
    assert status == 2 and opened == []
    assert captured.err.startswith(f"detops: error: 127.0.0.1:{port}: cannot listen (")
    status, _, _, captured = run("--host", "192.0.2.1")
    assert status == 2 and "192.0.2.1:0: cannot listen (" in captured.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "70000"],
        ["--port", "x"],
        ["--max-megabytes", "0"],
        ["--max-megapixels", "1001"],
        ["--score-floor", "1.5"],
        ["photo.jpg"],
    ],
)
def test_invalid_serve_options_are_rejected(run, arguments):
    assert run(*arguments)[0] == 2


def test_missing_starlette_is_reported(monkeypatch, capsys):
    for name in [n for n in sys.modules if n.startswith(("detops.serve", "starlette"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert cli.main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "detops: error: detops serve requires starlette, which is not installed: "
        "pip install 'detops[serve]'\n"
    )
