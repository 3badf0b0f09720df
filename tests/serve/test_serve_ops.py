# SPDX-License-Identifier: MIT
"""Results and sample positions of the ops that `detops serve` shows."""

import itertools
import json

import pytest
import torch

import detops

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from page_server import error_message, make_detector, send, serving  # noqa: E402

from detops.serve.ops import (  # noqa: E402
    KERNEL,
    MAP_HEIGHT,
    MAP_SIDE,
    MAP_WIDTH,
    OPS,
    PATTERNS,
    POSITION_RANGE,
    SCENE,
    deform_conv2d_samples,
    nms_scene,
    offset_pattern,
    roi_align_samples,
    smooth_map,
)


@pytest.fixture(scope="module")
def port():
    with serving({"a": make_detector()}) as port:
        yield port


@pytest.mark.parametrize(("seed", "objects"), [(0, 1), (3, 5), (9999, 12)])
def test_displayed_nms_equals_the_op_at_every_threshold(seed, objects):
    scene = nms_scene(seed, objects)
    boxes, scores = torch.tensor(scene["boxes"]), torch.tensor(scene["scores"])
    width, height = SCENE
    assert (boxes[:, :2] < boxes[:, 2:]).all() and boxes.min() >= 0
    assert boxes[:, 2].max() <= width and boxes[:, 3].max() <= height
    assert len(boxes) == 9 * objects == len(scores) and 0 < scores.min() and scores.max() <= 0.99
    counts = []
    for threshold, match in zip(scene["thresholds"], scene["matches"], strict=True):
        kept = {index for index, target in enumerate(match) if index == target}
        assert kept == set(detops.nms(boxes, scores, threshold).tolist()) == set(match)
        counts.append(len(kept))
    assert counts[0] < counts[25] < counts[-1] == len(boxes)


def test_nms_scene_depends_on_the_seed():
    assert nms_scene(1, 4) == nms_scene(1, 4) != nms_scene(2, 4)


@pytest.mark.parametrize("bins", [1, 3, 7])
@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("aligned", [0, 1])
def test_roi_align_samples_are_placed_as_in_the_paper(bins, ratio, aligned):
    x1, y1, x2, y2 = 2.5, 3.0, 12.25, 9.0
    shown = roi_align_samples(x1, y1, x2, y2, bins, ratio, aligned)
    count = bins * ratio

    def positions(low, high):
        return low - 0.5 * aligned + (torch.arange(count) + 0.5) * (high - low) / count

    y, x = torch.meshgrid(positions(y1, y2), positions(x1, x2), indexing="ij")
    expected = torch.stack([x, y, torch.ones_like(x)], -1).view(-1, 3)
    torch.testing.assert_close(torch.tensor(shown["samples"]), expected)


@pytest.mark.parametrize("ratio", [1, 3])
def test_weighted_pixels_of_a_bin_add_up_to_its_value(ratio):
    shown = roi_align_samples(1.2, 0.4, 11.9, 10.1, 4, ratio, 1)
    features = smooth_map(MAP_HEIGHT, MAP_WIDTH)
    pooled = detops.roi_align(
        features[None, None], [torch.tensor([[1.2, 0.4, 11.9, 10.1]])], 4, 1.0, ratio, True
    )
    torch.testing.assert_close(torch.tensor(shown["values"]), pooled.flatten())
    for value, reads in zip(shown["values"], shown["reads"], strict=True):
        assert sum(weight for _, weight in reads) == pytest.approx(1, abs=1e-5)
        mean = sum(weight * features.flatten()[pixel].item() for pixel, weight in reads)
        assert mean == pytest.approx(value, abs=1e-5)


def test_samples_outside_the_map_do_not_count():
    # Without `aligned`, a box is at least one pixel wide.
    shown = roi_align_samples(MAP_WIDTH, MAP_HEIGHT, MAP_WIDTH, MAP_HEIGHT, 1, 4, 0)
    assert {counts for _, _, counts in shown["samples"]} == {0}
    assert shown["values"] == [0] and shown["reads"] == [[]]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("amount", [0.0, 0.7, 3.0])
def test_deform_conv2d_samples_move_by_the_offsets(pattern, dilation, amount):
    offsets = offset_pattern(pattern, amount, dilation).view(KERNEL**2, 2, MAP_SIDE, MAP_SIDE)
    steps = (-dilation, 0, dilation)
    for row, column in itertools.product(POSITION_RANGE, POSITION_RANGE):
        shown = deform_conv2d_samples(pattern, amount, dilation, row, column)
        regular, moved = torch.tensor(shown["regular"]), torch.tensor(shown["moved"])
        assert regular.tolist() == [[column + x, row + y] for y in steps for x in steps]
        expected = regular + offsets[:, :, row, column].flip(1)
        torch.testing.assert_close(moved, expected, atol=1e-4, rtol=0)
        assert moved.min() >= -1e-4 and moved.max() <= MAP_SIDE - 1 + 1e-4
        if pattern == "none" or amount == 0:
            assert shown["value"] == shown["plain"]
        features = smooth_map(MAP_SIDE, MAP_SIDE)[None, None]
        sampled = detops.point_sample(features, (moved[None] + 0.5) / MAP_SIDE)
        assert shown["value"] == pytest.approx(sampled.mean().item(), abs=1e-4)


def test_responses_equal_the_results_of_the_functions(port):
    for name, (function, parameters) in OPS.items():
        status, _, response = send(port, "GET", f"/api/ops/{name}")
        defaults = {key: parameter.default for key, parameter in parameters.items()}
        assert status == 200
        assert response == json.loads(json.dumps(function(**defaults)))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("nms?seed=1.5", "seed: expected an integer from 0 to 9999, got '1.5'"),
        ("nms?seed=-1", "seed: expected an integer from 0 to 9999, got '-1'"),
        ("nms?objects=13", "objects: expected an integer from 1 to 12, got '13'"),
        ("nms?objects=", "objects: expected an integer from 1 to 12, got ''"),
        ("nms?seed=1&seed=2", "query: expected one seed, got several"),
        ("nms?boxes=1", "query: expected seed, objects, got 'boxes'"),
        ("roi_align?x1=nan", "x1: expected a number from 0 to 16, got 'nan'"),
        ("roi_align?x2=inf", "x2: expected a number from 0 to 16, got 'inf'"),
        ("roi_align?y2=1e300", "y2: expected a number from 0 to 12, got '1e300'"),
        ("roi_align?bins=" + "9" * 5000, "bins: expected an integer from 1 to 7"),
        ("deform_conv2d?row=4", "row: expected an integer from 5 to 11, got '4'"),
        (
            "deform_conv2d?pattern=__class__",
            "pattern: expected one of none, wider, turned, shifted, random, got '__class__'",
        ),
    ],
)
def test_invalid_op_queries_are_rejected(port, query, message):
    assert error_message(port, 400, "GET", f"/api/ops/{query}").startswith(message)
