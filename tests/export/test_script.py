"""Public functions and modules in TorchScript: alone, in a model, saved and loaded."""

import importlib
import inspect
import io

import pytest
import torch
from torch import Tensor, nn

import detops

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
torchvision = pytest.importorskip("torchvision")

X = torch.linspace(-1, 1, 2 * 8 * 16 * 16).view(2, 8, 16, 16)
BOXES = torch.tensor([[1.0, 2, 20, 25], [0, 0, 31, 31], [5, 5, 9, 8]])
OTHERS, SCORES = BOXES + 1, torch.tensor([0.5, 0.75, 0.25])
LISTS = [BOXES[:2], BOXES[2:]]
ROIS = torch.cat([torch.tensor([[0.0], [0], [1]]), BOXES], 1)
OFFSET, MASK = torch.rand(2, 18, 16, 16), torch.rand(2, 9, 16, 16)
LOGITS = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
PYRAMID = {"a": X, "b": X[..., ::2, ::2].contiguous()}
IMAGES = [(32, 32), (30, 31)]
FUNCTIONS = {
    "nms": [(BOXES, SCORES, 0.5), (BOXES, SCORES, 0.5, 0.3, 1)],
    "batched_nms": [
        (BOXES, SCORES, torch.tensor([0, 1, 0]), 0.5),
        (BOXES, SCORES, torch.tensor([0.0, 1.5, 0.0]), 0.5),
    ],
    "box_area": [(BOXES,), (BOXES, "xywh"), (BOXES.int(),)],
    "box_convert": [(BOXES, "xyxy", "cxcywh")],
    "clip_boxes_to_image": [(BOXES, (10, 20))],
    "remove_small_boxes": [(BOXES, 5.0)],
    "masks_to_boxes": [(MASK[0] > 0.9,)],
    **{
        name: [(BOXES, OTHERS)]
        for name in (
            *("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"),
            "generalized_box_iou_loss",
            "distance_box_iou_loss",
            "complete_box_iou_loss",
        )
    },
    "sigmoid_focal_loss": [(LOGITS, LOGITS.sigmoid(), 0.25, 2.0, r) for r in ("none", "mean")],
    "roi_align": [(X, ROIS, 2, 0.5), (X, LISTS, (2, 3), 0.5, 2), (X, ROIS, [2, 3], 0.5, 2, True)],
    "roi_pool": [(X, ROIS, 2, 0.5), (X, LISTS, (2, 2), 0.5)],
    "ps_roi_align": [(X, ROIS, 2, 0.5, 2), (X, LISTS, (2, 2), 0.5)],
    "ps_roi_pool": [(X, ROIS, 2, 0.5), (X, LISTS, (2, 2), 0.5)],
    "deform_conv2d": [
        (X, OFFSET, torch.rand(4, 8, 3, 3), None, 1, 1),
        (X, OFFSET, torch.rand(4, 8, 3, 3), torch.rand(4), (1, 1), (1, 1), (1, 1), MASK),
    ],
}
MODULES = {
    "RoIAlign": [(detops.RoIAlign(2, 0.5, 2), (X, LISTS))],
    "RoIPool": [(detops.RoIPool((2, 3), 0.5), (X, ROIS))],
    "PSRoIAlign": [(detops.PSRoIAlign(2, 0.5, 2), (X, LISTS))],
    "PSRoIPool": [(detops.PSRoIPool(2, 0.5), (X, ROIS))],
    "DeformConv2d": [
        (detops.DeformConv2d(8, 4, 3, padding=1), (X, OFFSET)),
        (detops.DeformConv2d(8, 4, 3, padding=1, bias=False), (X, OFFSET, MASK)),
    ],
    "MultiScaleRoIAlign": [
        (detops.MultiScaleRoIAlign(["a", "b", "c"], 2, 2), (PYRAMID, LISTS, IMAGES))
    ],
}
# The tutorial's MLP is a different class from the one in torchvision.
DIFFERENT_CLASSES = {"MLP"}
PUBLIC = sorted(
    name
    for name in detops.ops.__all__
    if inspect.isfunction(getattr(detops, name)) and name != "register_tensor_methods"
)
UNSUPPORTED = {"masks_to_rle", "weighted_box_fusion"}


def test_cases_cover_all_names_shared_with_torchvision():
    shared = set(torchvision.ops.__all__) & set(detops.ops.__all__)
    assert shared - DIFFERENT_CLASSES == set(FUNCTIONS) | set(MODULES)


def save_and_load(scripted):
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scripted_function_equals_eager(name):
    function = getattr(detops, name)
    scripted = torch.jit.script(function)
    for args in FUNCTIONS[name]:
        assert torch.equal(scripted(*args), function(*args))


@pytest.mark.parametrize("name", MODULES)
def test_scripted_module_equals_eager(name):
    for module, args in MODULES[name]:
        scripted = torch.jit.script(module)
        assert torch.equal(scripted(*args), module(*args))
        assert torch.equal(save_and_load(scripted)(*args), module(*args))


class Model(nn.Module):
    """A user model that contains detops functions and a module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.pool = detops.RoIAlign(2, 0.5, 2)

    def forward(self, x: Tensor, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        keep = detops.nms(boxes, scores, 0.5)
        kept = detops.clip_boxes_to_image(boxes[keep], (32, 32))
        overlap = detops.box_iou(kept * self.weight, boxes).sum()
        pooled = self.pool(x * self.weight, [kept, kept[:0]])
        return pooled, overlap + detops.roi_align(x * self.weight, [kept, kept], 1, 0.5, 2).sum()


def test_scripted_model_has_the_same_gradients():
    model = Model()
    for scripted in (torch.jit.script(model), save_and_load(torch.jit.script(model))):
        gradients = []
        for each in (model, scripted):
            pooled, number = each(X, BOXES, SCORES)
            (gradient,) = torch.autograd.grad(pooled.sum() + number, list(each.parameters()))
            gradients.append(gradient)
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in UNSUPPORTED])
def test_public_functions_can_be_scripted(name):
    torch.jit.script(getattr(detops, name))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_scripting_an_unsupported_function_raises(name):
    with pytest.raises(RuntimeError, match=f"detops.{name} cannot be scripted: call torch.ops.d"):
        torch.jit.script(getattr(detops, name))


DETECTORS = [
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    pytest.param("fcos_resnet50_fpn", marks=pytest.mark.slow),
    pytest.param("keypointrcnn_resnet50_fpn", marks=pytest.mark.slow),
    pytest.param("maskrcnn_resnet50_fpn", marks=pytest.mark.slow),
    pytest.param("retinanet_resnet50_fpn", marks=pytest.mark.slow),
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DETECTORS)
def test_torchvision_detectors_script_inside_and_after_the_patch(name):
    torch.manual_seed(0)
    make = getattr(torchvision.models.detection, name)
    size = {} if name.startswith("ssd") else {"min_size": 64}
    detector = make(weights=None, weights_backbone=None, **size).eval()
    images = [torch.rand(3, 64, 80)]

    @torch.no_grad()
    def scripted():
        return torch.jit.script(detector)(images)[1]

    with torch.no_grad():
        expected = detector(images)
    with detops.patch_torchvision():
        inside = scripted()
    for found in (inside, scripted()):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("location", detops.compat.torchvision.functions.FUNCTIONS, ids="-".join)
def test_torchvision_function_scripts_inside_and_after_the_patch(location):
    module, name = location
    if name == "masks_to_boxes":
        pytest.skip("torchvision calls a method that TorchScript lacks")
    function = getattr(importlib.import_module(module), name)
    with detops.patch_torchvision():
        torch.jit.script(function)
    torch.jit.script(function)
