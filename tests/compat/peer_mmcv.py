"""Box functions of mmcv on detops; test_compat_mmcv.py runs this in a separate process."""

import ast
import inspect
from pathlib import Path

import mmcv
import numpy as np
import pytest
import reference as reference_ops
import reference_mmcv as reference
import reference_polygons
import torch
import torchvision
from peer_mmcv_inputs import close, random, random_boxes

import detops
from detops.compat.mmcv import FUNCTIONS

ops = pytest.importorskip("mmcv.ops")


def loaded_names():
    """Yields every name that the Python code of mmcv loads from its extension module."""
    for path in Path(mmcv.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "load_ext" in ast.unparse(node.func):
                yield from ast.literal_eval(node.args[1])


def test_every_name_that_mmcv_loads_exists():
    names = set(loaded_names())
    assert len(names) > 100 and names >= FUNCTIONS.keys()
    for name in names - FUNCTIONS.keys():
        with pytest.raises(
            NotImplementedError, match=rf"detops does not implement mmcv\._ext\.{name}"
        ):
            getattr(mmcv._ext, name)(1, a=2)
    with pytest.raises(AttributeError):
        _ = mmcv._ext.__path__


def test_arguments_match_the_mmcv_bindings():
    """Reads the source of the bindings, which mmcv-lite includes."""
    source = Path(ops.__file__).parent / "csrc" / "pytorch" / "pybind.cpp"
    if not source.exists():
        pytest.skip("this mmcv has no sources with it")
    text = source.read_text().split("PYBIND11_MODULE")[1]
    checked = set()
    for binding in text.split("m.def(")[1:]:
        name = binding.split('"')[1]
        arguments = [a.split('"')[1] for a in binding.split("py::arg(")[1:]]
        if name not in FUNCTIONS or name == "roi_align_rotated_backward":
            continue  # the bindings name three of its arguments in another order
        function = FUNCTIONS[name]
        if isinstance(function, torch._ops.OpOverloadPacket):
            ours = [a.name for a in function.default._schema.arguments]
        else:
            ours = list(inspect.signature(function).parameters)
        assert ours == arguments, name
        checked.add(name)
    assert checked == FUNCTIONS.keys() - {"roi_align_rotated_backward"}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("integral", [False, True])
def test_nms_matches_the_reference(offset, integral):
    boxes, scores = random_boxes(120, integral=integral), torch.rand(120)
    scores[10:20] = scores[0]
    for threshold in (0.0, 0.3, 0.5, 1.0):
        dets, keep = ops.nms(boxes, scores, threshold, offset=offset)
        expected = reference.nms(boxes, scores, threshold, offset)
        assert torch.equal(keep, expected)
        assert torch.equal(dets, torch.cat([boxes, scores[:, None]], 1)[expected])


def test_nms_keeps_boxes_at_the_threshold_for_both_offsets():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 9, 9], [0, 0, 9, 4]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    for pair, offset in (([0, 1], 0), ([2, 3], 1)):  # IoU of 0.5
        kept = [len(ops.nms(boxes[pair], scores[pair], t, offset)[1]) for t in (0.5, 0.4999999)]
        assert kept == [2, 1]


def test_nms_accepts_numpy_limits_and_empty_input():
    boxes, scores = random_boxes(60).numpy(), np.linspace(0, 1, 60, dtype=np.float32)
    dets, keep = ops.nms(boxes, scores, 0.4, score_threshold=0.5, max_num=3)
    assert isinstance(dets, np.ndarray) and dets.shape == (3, 5)
    assert keep.tolist() == reference.nms(*map(torch.tensor, (boxes, scores)), 0.4)[:3].tolist()
    dets, keep = ops.nms(torch.empty(0, 4), torch.empty(0), 0.5)
    assert dets.shape == (0, 5) and keep.shape == (0,) and keep.dtype == torch.int64


@pytest.mark.parametrize("integral", [False, True])
def test_nms_match_gives_the_reference_groups(integral):
    dets = torch.cat([random_boxes(90, integral=integral), torch.rand(90, 1)], 1)
    dets[5:15, 4] = dets[0, 4]
    for threshold in (0.0, 0.2, 0.5, 1.0):
        expected = reference.nms_match(dets, threshold)
        groups = ops.nms_match(dets, threshold)
        assert [g.tolist() for g in groups] == expected
        assert [g.tolist() for g in ops.nms_match(dets.numpy(), threshold)] == expected
    assert ops.nms_match(dets[:0], 0.5) == []
    pair = torch.tensor([[0.0, 0, 10, 10, 0.8], [0, 0, 10, 5, 0.9]])  # an IoU of 0.5
    assert [g.tolist() for g in ops.nms_match(pair, 0.5)] == [[1, 0]]


def test_batched_nms_matches_torchvision():
    boxes, scores = random_boxes(90), torch.rand(90)
    labels = torch.arange(90) % 3
    dets, keep = ops.batched_nms(boxes, scores, labels, dict(type="nms", iou_threshold=0.5))
    assert torch.equal(keep, torchvision.ops.batched_nms(boxes, scores, labels, 0.5))
    for kind in ("soft_nms", "nms_rotated"):
        inputs = boxes if kind == "soft_nms" else torch.cat([boxes, torch.rand(90, 1)], 1)
        config = dict(type=kind, iou_threshold=0.5)
        assert len(ops.batched_nms(inputs, scores, labels, config)[1]) > 3


@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_soft_nms_matches_the_reference(method, offset, ties):
    boxes, scores = random_boxes(70, integral=ties), torch.rand(70)
    if ties:
        scores = (scores * 5).round() / 5
    for threshold, min_score in ((0.3, 1e-3), (0.5, 0.3)):
        dets, keep = ops.soft_nms(boxes, scores, threshold, 0.5, min_score, method, offset)
        expected, values = reference.soft_nms(
            boxes.numpy(), scores.numpy(), threshold, 0.5, min_score, method, offset
        )
        assert torch.equal(keep, expected)
        assert torch.equal(dets[:, :4], boxes[expected])
        close(dets[:, 4], values, 1e-6)


def test_soft_nms_decays_at_the_threshold_and_keeps_the_best():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [50, 50, 60, 60]])
    dets, keep = ops.soft_nms(boxes, torch.tensor([0.9, 0.8, 0.5]), 0.5, method="linear")
    assert keep.tolist() == [0, 2, 1] and dets[2, 4] == 0.4
    for scores in ([0.1, 0.2, 0.05], [0.2, 0.2, 0.05]):
        dets, keep = ops.soft_nms(boxes, torch.tensor(scores), 0.5, min_score=0.3)
        assert len(keep) == 1 and dets[0, 4] == 0.2 and keep[0] == scores.index(0.2)
    assert ops.soft_nms(torch.empty(0, 4), torch.empty(0))[1].shape == (0,)


def rotated_boxes(count, seed=0):
    g = torch.Generator().manual_seed(seed)
    centre = torch.rand(count, 2, generator=g) * 40
    side = 5 + torch.rand(count, 2, generator=g) * 20
    return torch.cat([centre, side, torch.randn(count, 1, generator=g) * 3], 1)


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_box_iou_rotated_matches_the_reference(clockwise, mode):
    first, second = rotated_boxes(40), rotated_boxes(33, seed=1)
    expected = reference.box_iou_rotated(first, second, mode, clockwise)
    assert (expected > 0.3).any()
    close(ops.box_iou_rotated(first, second, mode, clockwise=clockwise), expected, 1e-5)
    pairs = ops.box_iou_rotated(first[:33], second, mode, aligned=True, clockwise=clockwise)
    close(pairs, expected[:33].diagonal(), 1e-5)
    assert ops.box_iou_rotated(first[:0], second, mode).shape == (0, 33)
    assert ops.box_iou_rotated(first[:0], second[:0], mode, aligned=True).shape == (0,)


def polygons(count=30):
    g = torch.Generator().manual_seed(3)
    return reference_polygons.random_sets(g, count), reference_polygons.random_quads(g, count)


def test_convex_iou_and_giou_match_the_reference():
    sets, quads = (x.float() for x in polygons())
    close(ops.convex_iou(sets, quads[:20]), reference_polygons.convex_iou(sets, quads[:20]))
    giou, gradient = ops.convex_giou(sets, quads)
    close(giou, reference_polygons.convex_giou(sets, quads))
    assert gradient.shape == (30, 18)
    sets64, step = sets.double(), 1e-5
    for i in range(18):
        shift = torch.zeros(18, dtype=torch.double).index_fill(0, torch.tensor([i]), step)
        values = [reference_polygons.convex_giou(sets64 + x, quads) for x in (shift, -shift)]
        close(gradient[:, i], (values[0] - values[1]) / (2 * step), 1e-4)


@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_box_iou_quadri_matches_the_reference(mode):
    quads = polygons(40)[1].float()
    expected = reference_polygons.box_iou_quadri(quads, quads[:20], mode)
    assert (expected > 0.1).any()
    close(ops.box_iou_quadri(quads, quads[:20], mode), expected)
    pairs = ops.box_iou_quadri(quads[:20], quads[20:], mode, aligned=True)
    close(pairs, reference_polygons.box_iou_quadri(quads[:20], quads[20:], mode).diagonal())
    assert ops.box_iou_quadri(quads[:0], quads, mode).shape == (0, 40)


def test_nms_quadri_suppresses_at_the_threshold_across_labels():
    full = torch.tensor([0.0, 0, 10, 0, 10, 10, 0, 10])
    lower_half = torch.tensor([0.0, 0, 10, 0, 10, 5, 0, 5])
    boxes = torch.stack([full, lower_half, full + 50])
    scores, labels = torch.tensor([0.5, 0.9, 0.7]), torch.tensor([0, 1, 2])
    dets, keep = ops.nms_quadri(boxes, scores, 0.5)  # an IoU of 0.5
    assert keep.tolist() == [1, 2] and dets.shape == (2, 9)
    assert ops.nms_quadri(boxes, scores, 0.5000001)[1].tolist() == [1, 2, 0]
    assert ops.nms_quadri(boxes, scores, 0.5, labels)[1].tolist() == [1, 2]
    no_dets, no_keep = ops.nms_quadri(boxes[:0], scores[:0], 0.5)
    assert no_dets.shape == (0, 8) and no_keep is None


def test_min_area_polygons_gives_the_values_of_mmcv():
    """The expected values come from the tests of mmcv."""
    grid = [1.0, 1, 2, 2, 1, 2, 2, 1, 1, 3, 3, 1, 2, 3, 3, 2, 1.5, 1.5]
    outlier = [*grid[:2], 8.0, 8, *grid[4:]]
    expected = [3.0, 1, 1, 1, 1, 3, 3, 3]
    rotated = [8.0, 8, 2.3243, 0.0541, 0.0541, 1.6757, 5.7297, 9.6216]
    close(
        ops.min_area_polygons(torch.tensor([grid, outlier])),
        torch.tensor([expected, rotated]),
        1e-4,
    )


def test_points_in_polygons_matches_the_reference():
    quads = polygons()[1].float()
    points = torch.rand(50, 2) * 60
    found = ops.points_in_polygons(points, quads)
    assert found.dtype == torch.float32 and 0 < found.sum() < found.numel()
    for i, point in enumerate(points.double().tolist()):
        for j, quad in enumerate(quads):
            assert found[i, j] == reference_polygons.contains(
                reference_polygons.to_points(quad), point
            )


def test_diff_iou_rotated_2d_matches_the_reference():
    first, second = (rotated_boxes(40, seed=i)[None].double() for i in (0, 1))
    first[0, 3] = second[0, 3]
    first, second = (x.float().requires_grad_() for x in (first, second))
    expected = reference.box_iou_rotated(first.detach()[0], second.detach()[0]).diagonal()
    assert (expected > 0.3).any() and (expected == 0).any()
    found = ops.diff_iou_rotated_2d(first, second)
    close(found[0], expected, 1e-4)
    degrees = first.new_tensor([1, 1, 1, 1, -180 / torch.pi])
    ours = detops.rotated_iou(first * degrees, second * degrees)
    grad = random(1, 40)
    for a, b in zip(
        torch.autograd.grad(found, (first, second), grad),
        torch.autograd.grad(ours, (first, second), grad),
        strict=True,
    ):
        a, b = (x[0, torch.arange(40) != 3] for x in (a, b))  # except where the boxes coincide
        close(a, b, 1e-3)


def test_sort_vertices_orders_by_angle():
    """Angles start at the x axis, according to the comments in the kernel of mmcv."""
    vertices, mask = torch.zeros(1, 3, 24, 2), torch.zeros(1, 3, 24, dtype=torch.bool)
    angle = torch.tensor([3.0, 0.1, 6.2, 4.0, 1.5])
    positions = torch.tensor([0, 5, 8, 9, 23])
    vertices[0, :2, positions] = torch.stack([angle.cos(), angle.sin()], 1)
    mask[0, 0, positions] = True
    mask[0, 1, positions[:2]] = True
    found = mmcv._ext.diff_iou_rotated_sort_vertices_forward(vertices, mask, mask.sum(2).int())
    assert found.tolist() == [[[5, 23, 0, 9, 8, 5, 10, 10, 10], [8] * 9, [8] * 9]]


def test_angle_is_in_radians_and_clockwise():
    wide = torch.tensor([[20.0, 20, 20, 4, 0]])
    tall = torch.tensor([[20.0, 20, 4, 20, torch.pi / 2]])
    close(ops.box_iou_rotated(wide, tall), torch.ones(1, 1), 1e-6)
    # y points down, so the box turns down to the right; its corner is at (27, 27).
    rotated = torch.tensor([[20.0, 20, 20, 1, torch.pi / 4]])
    corner = torch.tensor([[26.0, 26, 1, 1, 0]])
    assert ops.box_iou_rotated(rotated, corner) > 0
    assert ops.box_iou_rotated(rotated, corner, clockwise=False) == 0


def test_nms_rotated_suppresses_at_the_threshold_across_labels():
    boxes = torch.tensor([[20.0, 20, 10, 10, 0], [20, 20, 10, 5, 0], [50, 50, 4, 4, 1]])
    scores, labels = torch.tensor([0.5, 0.9, 0.7]), torch.tensor([0, 1, 2])
    dets, keep = ops.nms_rotated(boxes, scores, 0.5)  # an IoU of 0.5
    assert keep.tolist() == [1, 2] and dets.shape == (2, 6)
    assert torch.equal(dets, torch.cat([boxes, scores[:, None]], 1)[keep])
    assert ops.nms_rotated(boxes, scores, 0.5000001)[1].tolist() == [1, 2, 0]
    assert ops.nms_rotated(boxes, scores, 0.5, labels)[1].tolist() == [1, 2]
    no_dets, no_keep = ops.nms_rotated(boxes[:0], scores[:0], 0.5)
    assert no_dets.shape == (0, 5) and no_keep is None


@pytest.mark.parametrize("mode", ["iou", "iof"])
@pytest.mark.parametrize("offset", [0, 1])
def test_bbox_overlaps_matches_the_reference(mode, offset):
    first, second = random_boxes(20), random_boxes(20, seed=1)
    expected = torch.empty(20, 20)
    for i, a in enumerate(first.numpy()):
        for j, b in enumerate(second.numpy()):
            value = reference.iou(a, b, offset)
            areas = [(c[2] - c[0] + offset) * (c[3] - c[1] + offset) for c in (a, b)]
            value = value if mode == "iou" else value * sum(areas) / (1 + value) / areas[0]
            expected[i, j] = float(value)
    close(ops.bbox_overlaps(first, second, mode, offset=offset), expected, 1e-6)
    pairs = ops.bbox_overlaps(first, second, mode, aligned=True, offset=offset)
    close(pairs, expected.diagonal(), 1e-6)
    assert ops.bbox_overlaps(first[:0], second, mode).shape == (0, 20)
    point = torch.zeros(1, 4)
    assert ops.bbox_overlaps(point, point, mode, offset=offset).isnan().item() == (offset == 0)


def test_chamfer_distance_matches_the_reference():
    first, second = (random(3, n, 2, scale=20).requires_grad_() for n in (17, 11))
    found = ops.chamfer_distance(first, second)
    expected = reference_ops.chamfer_distance(first.detach(), second.detach())
    for x, y in zip(found, expected, strict=True):
        close(x, y, 1e-5)
    assert found[2].dtype == found[3].dtype == torch.int32
    ours = torch.autograd.grad(detops.chamfer_distance(first, second)[:2], (first, second),
                               [torch.ones_like(x) for x in found[:2]])  # fmt: skip
    grads = torch.autograd.grad(found[:2], (first, second), [torch.ones_like(x) for x in found[:2]])
    for x, y in zip(grads, ours, strict=True):
        close(x, y, 1e-6)
