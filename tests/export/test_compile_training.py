"""A compiled training step: its losses and gradients, compared with the eager step."""

import pytest
import torch
from small_detectors import (  # noqa: F401
    noise_images,
    single_steps,
    small_detector,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("single_steps")]

# One config of each kind of detector.
TRAINED = [
    pytest.param("tree_crowns", "inductor", marks=pytest.mark.exhaustive),
    ("mask_rcnn_R_50_C4_1x", "aot_eager"),
    pytest.param("keypoint_rcnn_R_50_FPN_1x", "aot_eager", marks=pytest.mark.exhaustive),
    pytest.param("retinanet_R_50_FPN_1x", "aot_eager", marks=pytest.mark.exhaustive),
]


def make_targets(images):
    """Returns three objects per image, and a seed that draws the samples of the losses."""
    corners = torch.tensor([[4.0, 6.0], [20.0, 10.0], [2.0, 30.0]])
    sizes = torch.tensor([[36.0, 44.0], [40.0, 50.0], [31.0, 30.0]])
    boxes = torch.cat([corners, corners + sizes], 1)
    masks = torch.zeros(3, *images[0].shape[1:], dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    points = corners[:, None] + torch.linspace(0.1, 0.9, 17).view(1, -1, 1) * sizes[:, None]
    keypoints = torch.cat([points, torch.ones(3, 17, 1)], 2)
    objects = {"boxes": boxes, "labels": torch.ones(3, dtype=torch.long)}
    objects |= {"masks": masks, "keypoints": keypoints}
    return [objects | {"seed": seed} for seed in range(len(images))]


def step(model, call, images, targets):
    """Returns the losses, and the gradient of each parameter that has one."""
    model.zero_grad(set_to_none=True)
    losses = call(images, targets)
    sum(losses.values()).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {name: loss.detach() for name, loss in losses.items()}, gradients


@pytest.mark.parametrize(("name", "backend"), TRAINED)
def test_compiled_training_step_equals_eager(name, backend):
    model = small_detector(name).train()
    images = noise_images((64, 80), (64, 80))[:2]
    targets = make_targets(images)
    with torch.enable_grad():
        losses, gradients = step(model, model, images, targets)
        compiled = torch.compile(model, backend=backend)
        compiled_losses, compiled_gradients = step(model, compiled, images, targets)
    model.eval()
    assert all(loss > 0 for loss in losses.values()) and len(gradients) > 10
    assert set(gradients) == set(compiled_gradients)
    torch.testing.assert_close(compiled_losses, losses, rtol=1e-4, atol=1e-5)
    for key, gradient in gradients.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            compiled_gradients[key], gradient, rtol=1e-3, atol=1e-4 * scale + 1e-6, msg=key
        )
