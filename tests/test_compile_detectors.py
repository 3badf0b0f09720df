"""Every shipped config in inference: compiled without a break, and exported for any image."""

import io
import logging
from functools import cache
from pathlib import Path

import pytest
import torch

import detops
from detops.config import load_config
from detops.modeling import build_detection_model
from detops.modeling.backbone import resnet

pytestmark = pytest.mark.slow

FOLDER = Path(detops.__file__).parent / "configs"
CONFIGS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "defaults")
SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 8,
    "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.GROUP_NORM.NUM_GROUPS", 4,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 16, "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "MODEL.RETINANET.NUM_CLASSES", 3,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (8,), "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,),
    "MODEL.RPN.PRE_NMS_TOP_N_TEST", 100, "MODEL.RPN.POST_NMS_TOP_N_TEST", 50,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 50, "MODEL.RETINANET.NUM_CONVS", 1,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.RETINANET.INFERENCE_TH", 0.0,
    "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TEST", 96,
]  # fmt: skip


def overrides_of(name):
    """As small as can be, with the structure of the config."""
    cfg = load_config(FOLDER / f"{name}.yaml")
    channels = 8 if "FPN" in cfg.MODEL.BACKBONE.CONV_BODY else 32
    groups = min(2, cfg.MODEL.RESNETS.NUM_GROUPS)
    return [
        *SMALL, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", channels, "MODEL.RESNETS.NUM_GROUPS", groups
    ]  # fmt: skip


def structure(name):
    """What the built network depends on: configs that agree in it are compiled once."""
    cfg = load_config(FOLDER / f"{name}.yaml", overrides_of(name))
    body = cfg.MODEL.BACKBONE.CONV_BODY.partition("-")[2].partition("-")[2]
    model = {k: v for k, v in cfg.MODEL.items() if k not in ("BACKBONE", "WEIGHT")}
    return str((body, model, cfg.INPUT, cfg.DATALOADER.SIZE_DIVISIBILITY))


@pytest.fixture(autouse=True)
def one_block_per_stage(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch"), "disabled", True)
    for depth in resnet.STAGES:
        monkeypatch.setitem(resnet.STAGES, depth, (1, 1, 1, 1))
    # oneDNN rounds what it fuses otherwise than a graph that does one step after the other.
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        yield
    torch._dynamo.reset()


@cache
def detector_of(structure_, name, overrides=()):
    torch.manual_seed(0)
    cfg = load_config(FOLDER / f"{name}.yaml", [*overrides_of(name), *overrides])
    return build_detection_model(cfg).eval()


# Sums in another order; of boxes, in pixels of the image.
TOLERANCES = {"boxes": {"atol": 1e-3, "rtol": 0}}


def check(traced, model, images):
    """Whether a graph gives what the model does; returns how much is found in each image."""
    counts = []
    for image in images:
        expected = model([image])[0]
        (found,) = traced([image])
        assert set(found) == set(expected)
        for key, value in expected.items():
            assert found[key].dtype == value.dtype and found[key].shape == value.shape, key
            if value.is_floating_point():
                within = TOLERANCES.get(key, {})
                torch.testing.assert_close(found[key], value, equal_nan=True, **within)
            elif key == "masks":  # a pixel on the edge may fall either way
                assert (found[key] != value).sum() <= 1e-3 * value.numel()
            else:
                assert torch.equal(found[key], value), key
        counts.append(len(expected["boxes"]))
    return counts


def images_of(*sizes):
    """Noise; in an image of NaN nothing is found."""
    generator = torch.Generator().manual_seed(1)
    noise = [torch.rand(3, *size, generator=generator) for size in sizes]
    return [*noise, torch.full((3, *sizes[0]), torch.nan)]


def reloaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("name", {structure(name): name for name in CONFIGS}.values())
def test_compiled_and_exported(name):
    """No break in the graph, and one graph however many boxes there are."""
    model = detector_of(structure(name), name)
    images = images_of((64, 80), (64, 80))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    counts = check(compiled, model, images)
    assert counts[0] > 0 and counts[-1] == 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(compiled, model, images)
    program = torch.export.export(model, (images[:1],))
    assert check(reloaded(program), model, images) == counts


@pytest.mark.parametrize(
    ("name", "resized"),
    [
        ("tree_crowns", True),
        ("mask_rcnn_R_50_FPN_1x", False),
        ("mask_rcnn_R_50_C4_1x", False),
        ("torchvision_keypoint_rcnn_R_50_FPN", False),
        ("retinanet_R_50_FPN_1x", False),
    ],
)
def test_exported_for_images_of_any_size(name, resized):
    model = detector_of(None, name, () if resized else ("INPUT.MIN_SIZE_TEST", 0))
    images = images_of((160, 200), (200, 160), (129, 311), (131, 130), (160, 160))
    sides = {1: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    program = torch.export.export(model, (images[:1],), dynamic_shapes=([sides],))
    counts = check(reloaded(program), model, images)
    assert min(counts[:-1]) > 0 and counts[-1] == 0
