"""Detectors in inference: compiled without a graph break, and exported."""

import io

import pytest
import torch
from small_detectors import (  # noqa: F401
    CONFIGS,
    DETECTORS,
    assert_same_detections,
    detectors,
    noise_images,
    single_steps,
    small_detector,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("single_steps")]


def check(traced, model, images):
    """Checks that a graph finds what the model finds; returns the detections per image."""
    counts = []
    for image in images:
        expected = model([image])[0]
        (found,) = traced([image])
        assert_same_detections(found, expected)
        counts.append(len(expected["boxes"]))
    return counts


def reloaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


def test_detectors_have_every_layer_of_the_configs():
    def layers(names):
        return {type(layer) for name in names for layer in small_detector(name).modules()}

    assert layers(DETECTORS) == layers(CONFIGS)


@pytest.mark.parametrize("name", detectors("mask_rcnn_R_50_FPN_1x", "retinanet_R_50_FPN_1x"))
def test_detector_compiles_and_exports_as_one_graph(name):
    """The graph has no break, and is the same for any number of boxes."""
    model = small_detector(name)
    images = noise_images((64, 80), (64, 80))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    counts = check(compiled, model, images)
    assert counts[0] > 0 and counts[-1] == 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(compiled, model, images)
    program = torch.export.export(model, (images[:1],))
    assert check(reloaded(program), model, images) == counts
