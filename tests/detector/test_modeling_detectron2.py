"""MODEL.CONVENTION detectron2: detections equal those of detectron2 with the same weights."""

import math

import detectron2_networks as networks
import numpy as np
import pytest
import reference_detectron2 as reference
import torch

import detops
from detops.config import load_config
from detops.engine import load_weights_into
from detops.modeling import build_detection_model
from detops.modeling.convention import CONVENTIONS
from detops.modeling.poolers import Pooler
from detops.modeling.roi_heads.box.inference import BoxPostProcessor
from detops.modeling.rpn import AnchorGenerator
from detops.modeling.rpn.inference import ProposalSelector
from detops.modeling.rpn.retinanet.inference import RetinaNetPostProcessor

CONVENTION = CONVENTIONS["detectron2"]
KINDS = ("faster_rcnn", "mask_rcnn", "retinanet")


def detector(kind, overrides=()):
    config = f"configs/detectron2_{kind}_R_50_FPN.yaml"
    return build_detection_model(load_config(config, [*networks.OVERRIDES, *overrides])).eval()


def to_float_tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def match_detections(found, expected):
    """Returns the index of each of our detections among the expected ones."""
    matches = (found["scores"][:, None] - expected["scores"]).abs() < 1e-4
    matches &= found["labels"][:, None] == expected["classes"] + 1
    matches &= ((found["boxes"][:, None] - expected["boxes"]).abs() < 0.01).all(dim=2)
    assert (matches.sum(dim=0) == 1).all() and (matches.sum(dim=1) == 1).all()
    return matches.long().argmax(dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_detections_match_detectron2(kind):
    state, expected = networks.case(kind)
    model = detector(kind)
    load_weights_into(model, state, complete=True)
    with torch.no_grad():
        found = model([to_float_tensor(p) for p in networks.photographs()])
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours["boxes"]) == len(theirs["boxes"]) > 10
        assert len(theirs["classes"].unique()) > 2
        torch.testing.assert_close(ours["scores"], theirs["scores"], rtol=0, atol=1e-4)
        order = match_detections(ours, theirs)
        assert ("masks" in ours) == (kind == "mask_rcnn")
        if "masks" in ours:
            soft = theirs["masks"][order]
            clear = (soft - 0.5).abs() > 1e-3
            assert clear.float().mean() > 0.999 and (soft > 0.5).any()
            assert torch.equal(ours["masks"][:, 0][clear], (soft >= 0.5)[clear])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_default_convention_gives_other_detections(kind):
    state, expected = networks.case(kind)
    model, other = detector(kind), detector(kind, ["MODEL.CONVENTION", "detops"])
    load_weights_into(model, state)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        found = other([to_float_tensor(p) for p in networks.photographs()])
    for ours, theirs in zip(found, expected, strict=True):
        same = ours["boxes"].shape == theirs["boxes"].shape
        assert not same or (ours["boxes"] - theirs["boxes"]).abs().max() > 0.01


SIZES = [(60, 90), (90, 60), (64, 64), (100, 200), (200, 100), (300, 70), (33, 200), (7, 3)]


@pytest.mark.parametrize("height, width", SIZES)
@pytest.mark.parametrize("small, large", [(48, 80), (100, 160), (60, 1000), (800, 1333), (0, 10)])
def test_images_are_resized_like_pillow(height, width, small, large):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    mean = torch.tensor(reference.MEAN).view(3, 1, 1)
    ours = CONVENTION.resize(
        to_float_tensor(pixels), lambda x: x.flip(0) * 255 - mean, small, large
    )
    if small == 0:
        assert ours.shape[1:] == (height, width)
    else:
        expected = reference.prepare(pixels, small, large)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


class Resized(torch.nn.Module):
    """Resizes an image like the first step of a detector."""

    def forward(self, image):
        return CONVENTION.resize(image, lambda x: x * 255, 48, 80)


@pytest.mark.slow
def test_compiled_and_exported_resize_matches_eager():
    """Graphs resize without Pillow: either of two passes may round half a byte up or down."""
    images = [torch.rand(3, *size) for size in ((60, 90), (90, 60), (33, 200), (64, 96))]
    compiled = torch.compile(Resized(), fullgraph=True, backend="eager")
    sides = {1: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(Resized(), (images[0],), dynamic_shapes=(sides,)).module()
    for image in images:
        expected = Resized()(image)
        for graph in (compiled, exported):
            assert (graph(image) - expected).abs().max() < 2.01
    torch.compiler.reset()


def test_resized_sides_are_rounded_like_detectron2():
    """At exactly half a pixel, the order of arithmetic decides the rounding."""
    halves = 0
    for height in range(1, 130):
        for width in range(1, 130):
            for small, large in ((800, 1333), (41, 67)):
                expected = reference.resized_size(height, width, small, large)
                longest = min(large, small * max(height, width) / min(height, width))
                halves += longest * min(height, width) / max(height, width) % 1 == 0.5
                sides = CONVENTION._resized_shape(height, width, small, large)
                assert sides == tuple(max(1, side) for side in expected), (height, width)
    assert halves > 20


def test_anchors_are_unrounded_and_ordered_by_size():
    sizes = [[32, 32 * 2 ** (1 / 3)], [64.0, 80.3]]
    features = [torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 2, 2)]
    generator = AnchorGenerator(sizes, reference.RATIOS, (8, 16), convention=CONVENTION)
    for level, (ours, x) in enumerate(zip(generator(features), features, strict=True)):
        expected = reference.grid_anchors(sizes[level], x, 8 * 2**level)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    cell = generator.cell_anchors[0]
    assert torch.equal(cell, reference.cell_anchors(sizes[0]))
    assert not torch.equal(cell, cell.round()) and generator.num_anchors() == [6, 6]
    area = (cell[:, 2:] - cell[:, :2]).prod(dim=1)
    assert (area[:3] < 1025).all() and (area[3:] > 1600).all()


@pytest.mark.parametrize("scales", [[0.25, 0.125, 0.0625, 0.03125], [0.0625]])
def test_pooler_matches_detectron2(scales):
    generator = torch.Generator().manual_seed(1)
    features = [torch.randn(2, 3, int(640 * s), int(960 * s), generator=generator) for s in scales]
    below = float(np.nextafter(np.float32(224), np.float32(0)))
    side = torch.tensor([0.0, 1, 30, 111.999, 112, 223.9998, below, 224, 224.01, 447.99, 448, 500])
    boxes = [torch.stack([0 * side, 0 * side, side, side], 1), torch.empty(0, 4)]
    boxes[1] = boxes[0][[5, 2, 7]] + 1.7
    ours = Pooler(5, scales, 0, convention=CONVENTION)(features, boxes)
    if len(scales) > 1:
        expected = reference.pool(features, boxes, 5)
        levels = [reference.fpn_level(box) for box in boxes[0]]
        assert levels == [2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5]
    else:
        rois = torch.cat(
            [torch.cat([torch.full((len(b), 1), float(i)), b], 1) for i, b in enumerate(boxes)]
        )
        expected = detops.roi_align(features[0], rois, 5, scales[0], 0, aligned=True)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    unaligned = Pooler(5, scales, 0)(features, boxes)
    assert (ours - unaligned).abs().max() > 0.01
    none = Pooler(5, scales, 0, convention=CONVENTION)(features, [torch.empty(0, 4)] * 2)
    assert none.shape == (0, 3, 5, 5)


def test_boxes_need_sides_above_the_minimum():
    boxes = torch.tensor([[0.0, 0, 5, 6], [1, 1, 1, 9], [2, 2, 2.001, 9], [0, 0, math.nan, 3]])
    assert CONVENTION.select_large(boxes, 0).tolist() == [0, 2]
    assert CONVENTION.select_large(boxes, 5).tolist() == []
    assert CONVENTION.select_large(boxes, 4.99).tolist() == [0]
    assert CONVENTION.select_large(torch.empty(0, 4), 0).tolist() == []
    assert CONVENTIONS["detops"].select_large(boxes, 5).tolist() == [0]


def test_proposal_limit_counts_all_levels_of_an_image():
    """Boxes without area are dropped; the limit applies per image."""
    select = ProposalSelector(detops.BoxCoder(), 10, 4, 4, False, 0.7, 0, CONVENTION)
    anchors = [
        torch.tensor([[0.0, 0, 9, 9], [50, 0, 59, 9], [-9, 0, 0, 9], [10, 10, 30, 30]]),
        torch.tensor([[0.0, 0, 9, 9], [0, 60, 9, 99]]),
    ]
    logits = [torch.tensor([[1.0, 2, 9, 4]]), torch.tensor([[7.0, 3]])]
    deltas = [torch.zeros(1, len(a), 4) for a in anchors]
    ((boxes, scores),) = select(logits, deltas, anchors, [(100, 100)])
    # The third anchor lies outside the image.
    assert scores.tolist() == [7, 4, 3, 2]
    assert boxes.tolist()[1] == [10, 10, 30, 30]


def test_empty_detections_count_toward_the_limit_then_drop():
    process = BoxPostProcessor(detops.BoxCoder(), 0.1, 0.5, 2, CONVENTION)
    proposals = torch.tensor([[20.0, 0, 30, 9], [0, 0, 9, 9], [0, 12, 9, 19], [2, 0, 2 + 2**-7, 9]])
    logits = torch.tensor([[0.0, 5], [0, 4], [0, 3], [0, 6]])
    (found,) = process(logits, torch.zeros(4, 8), [proposals], [(20, 20)])
    assert found["boxes"].tolist() == [proposals[3].tolist(), [20, 0, 20, 9]]
    seen = CONVENTION.select_visible(found)
    assert seen["boxes"].tolist() == [proposals[3].tolist()] and len(seen["scores"]) == 1
    (ours,) = BoxPostProcessor(detops.BoxCoder(), 0.1, 0.5, 2)(
        logits, torch.zeros(4, 8), [proposals], [(20, 20)]
    )
    assert ours["boxes"].tolist() == proposals[1:3].tolist()


def test_retinanet_runs_nms_on_unclipped_boxes():
    """Clipped to the image, the two boxes are equal; unclipped, they hardly overlap."""
    anchors = [torch.tensor([[0.0, 0, 10, 10], [-90, 0, 10, 10]])]
    logits, deltas = [torch.tensor([[[2.0], [1]]])], [torch.zeros(1, 2, 4)]
    coder = detops.BoxCoder()
    for convention, count in ((CONVENTION, 2), (CONVENTIONS["detops"], 1)):
        process = RetinaNetPostProcessor(coder, 0.05, 1000, 0.5, 100, convention)
        (found,) = process(logits, deltas, anchors, [(50, 50)])
        assert len(found["boxes"]) == count
    assert CONVENTION.clip_to_image(anchors[0], (50, 50)).tolist() == [[0, 0, 10, 10]] * 2


def test_mask_pixels_at_the_threshold_are_set():
    """A pixel of exactly 0.5 is set, and boxes keep their position."""
    at_threshold = CONVENTION.paste(
        torch.full((1, 1, 4, 4), 0.5), torch.tensor([[2.0, 3, 6, 7]]), (9, 9), 0.5
    )
    assert at_threshold.shape == (1, 1, 9, 9) and at_threshold.dtype == torch.bool
    assert at_threshold.nonzero()[:, 2:].amin(0).tolist() == [3, 2] and at_threshold.sum() == 16
    generator = torch.Generator().manual_seed(3)
    masks = torch.rand(40, 1, 28, 28, generator=generator)
    corner = torch.rand(40, 2, generator=generator) * 60 - 10
    boxes = torch.cat([corner, corner + torch.rand(40, 2, generator=generator) * 50 + 0.2], 1)
    ours = CONVENTION.paste(masks, boxes, (50, 61), 0.5)[:, 0]
    soft = torch.stack(
        [reference.paste(m, b, (50, 61)) for m, b in zip(masks[:, 0], boxes, strict=True)]
    )
    clear = (soft - 0.5).abs() > 1e-4
    assert clear.float().mean() > 0.999 and ours.any()
    assert torch.equal(ours[clear], (soft >= 0.5)[clear])
    assert (ours != CONVENTIONS["detops"].paste(masks, boxes, (50, 61), 0.5)[:, 0]).any()
    none = CONVENTION.paste(torch.empty(0, 1, 28, 28), torch.empty(0, 4), (5, 6), 0.5)
    assert none.shape == (0, 1, 5, 6)


def test_shipped_configs_match_detectron2():
    for kind in KINDS:
        cfg = load_config(f"configs/detectron2_{kind}_R_50_FPN.yaml")
        assert list(cfg.INPUT.PIXEL_MEAN) == list(reference.MEAN)
        assert cfg.MODEL.RESNETS.STRIDE_IN_1X1 and cfg.MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO == 0
        assert not cfg.MODEL.RPN.FPN_POST_NMS_PER_BATCH or kind == "retinanet"
        with torch.device("meta"):
            model = build_detection_model(cfg)
        assert model.convention is CONVENTION
