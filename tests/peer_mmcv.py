"""mmcv's own functions and modules on detops; test_compat_mmcv.py runs this in its own process."""

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
from reference_deform_conv2d import deform_conv2d as deform_conv2d_reference

import detops
from detops.compat.mmcv import FUNCTIONS

ops = pytest.importorskip("mmcv.ops")


def random(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g) * scale


def random_boxes(count, seed=0, whole=False):
    g = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=g) * 40
    boxes = torch.cat([corner, corner + 4 + torch.rand(count, 2, generator=g) * 20], 1)
    return boxes.round() if whole else boxes


def close(ours, expected, tolerance=1e-5):
    torch.testing.assert_close(ours.double(), expected.double(), rtol=tolerance, atol=tolerance)


def loaded_names():
    """Every name that mmcv's Python asks of its compiled half."""
    for path in Path(mmcv.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "load_ext" in ast.unparse(node.func):
                yield from ast.literal_eval(node.args[1])


def test_every_name_that_mmcv_loads_is_there():
    names = set(loaded_names())
    assert len(names) > 100 and names >= FUNCTIONS.keys()
    for name in names - FUNCTIONS.keys():
        with pytest.raises(NotImplementedError, match=rf"mmcv\._ext\.{name} is not among the ops"):
            getattr(mmcv._ext, name)(1, a=2)
    with pytest.raises(AttributeError):
        _ = mmcv._ext.__path__


def test_the_arguments_are_those_of_mmcvs_own_bindings():
    """By the text of the bindings, which mmcv-lite has with it."""
    source = Path(ops.__file__).parent / "csrc" / "pytorch" / "pybind.cpp"
    if not source.exists():
        pytest.skip("this mmcv has no sources with it")
    text = source.read_text().split("PYBIND11_MODULE")[1]
    seen = set()
    for part in text.split("m.def(")[1:]:
        name = part.split('"')[1]
        arguments = [a.split('"')[1] for a in part.split("py::arg(")[1:]]
        if name not in FUNCTIONS or name == "roi_align_rotated_backward":
            continue  # whose three names in the bindings are not in the order of its arguments
        function = FUNCTIONS[name]
        if isinstance(function, torch._ops.OpOverloadPacket):
            ours = [a.name for a in function.default._schema.arguments]
        else:
            ours = list(inspect.signature(function).parameters)
        assert ours == arguments, name
        seen.add(name)
    assert seen == FUNCTIONS.keys() - {"roi_align_rotated_backward"}


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_nms(offset, whole):
    boxes, scores = random_boxes(120, whole=whole), torch.rand(120)
    scores[10:20] = scores[0]
    for threshold in (0.0, 0.3, 0.5, 1.0):
        dets, keep = ops.nms(boxes, scores, threshold, offset=offset)
        expected = reference.nms(boxes, scores, threshold, offset)
        assert torch.equal(keep, expected)
        assert torch.equal(dets, torch.cat([boxes, scores[:, None]], 1)[expected])


def test_nms_at_the_threshold_with_and_without_the_last_pixel():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 9, 9], [0, 0, 9, 4]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    for pair, offset in (([0, 1], 0), ([2, 3], 1)):  # IoU of a half
        kept = [len(ops.nms(boxes[pair], scores[pair], t, offset)[1]) for t in (0.5, 0.4999999)]
        assert kept == [2, 1]


def test_nms_of_numpy_with_limits_and_of_nothing():
    boxes, scores = random_boxes(60).numpy(), np.linspace(0, 1, 60, dtype=np.float32)
    dets, keep = ops.nms(boxes, scores, 0.4, score_threshold=0.5, max_num=3)
    assert isinstance(dets, np.ndarray) and dets.shape == (3, 5)
    assert keep.tolist() == reference.nms(*map(torch.tensor, (boxes, scores)), 0.4)[:3].tolist()
    dets, keep = ops.nms(torch.empty(0, 4), torch.empty(0), 0.5)
    assert dets.shape == (0, 5) and keep.shape == (0,) and keep.dtype == torch.int64


@pytest.mark.parametrize("whole", [False, True])
def test_nms_match(whole):
    dets = torch.cat([random_boxes(90, whole=whole), torch.rand(90, 1)], 1)
    dets[5:15, 4] = dets[0, 4]
    for threshold in (0.0, 0.2, 0.5, 1.0):
        expected = reference.nms_match(dets, threshold)
        groups = ops.nms_match(dets, threshold)
        assert [g.tolist() for g in groups] == expected
        assert [g.tolist() for g in ops.nms_match(dets.numpy(), threshold)] == expected
    assert ops.nms_match(dets[:0], 0.5) == []
    pair = torch.tensor([[0.0, 0, 10, 10, 0.8], [0, 0, 10, 5, 0.9]])  # an IoU of a half
    assert [g.tolist() for g in ops.nms_match(pair, 0.5)] == [[1, 0]]


def test_batched_nms():
    boxes, scores = random_boxes(90), torch.rand(90)
    labels = torch.arange(90) % 3
    dets, keep = ops.batched_nms(boxes, scores, labels, dict(type="nms", iou_threshold=0.5))
    assert torch.equal(keep, torchvision.ops.batched_nms(boxes, scores, labels, 0.5))
    for kind in ("soft_nms", "nms_rotated"):
        given = boxes if kind == "soft_nms" else torch.cat([boxes, torch.rand(90, 1)], 1)
        config = dict(type=kind, iou_threshold=0.5)
        assert len(ops.batched_nms(given, scores, labels, config)[1]) > 3


@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_soft_nms(method, offset, ties):
    boxes, scores = random_boxes(70, whole=ties), torch.rand(70)
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


def test_soft_nms_lowers_at_the_threshold_and_keeps_the_best_box():
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
def test_box_iou_rotated(clockwise, mode):
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


def test_convex_iou_and_giou():
    sets, quads = (x.float() for x in polygons())
    close(ops.convex_iou(sets, quads[:20]), reference_polygons.convex_iou(sets, quads[:20]))
    giou, gradient = ops.convex_giou(sets, quads)
    close(giou, reference_polygons.convex_giou(sets, quads))
    assert gradient.shape == (30, 18)
    wide, step = sets.double(), 1e-5
    for i in range(18):
        aside = torch.zeros(18, dtype=torch.double).index_fill(0, torch.tensor([i]), step)
        values = [reference_polygons.convex_giou(wide + x, quads) for x in (aside, -aside)]
        close(gradient[:, i], (values[0] - values[1]) / (2 * step), 1e-4)


@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_box_iou_quadri(mode):
    quads = polygons(40)[1].float()
    expected = reference_polygons.box_iou_quadri(quads, quads[:20], mode)
    assert (expected > 0.1).any()
    close(ops.box_iou_quadri(quads, quads[:20], mode), expected)
    pairs = ops.box_iou_quadri(quads[:20], quads[20:], mode, aligned=True)
    close(pairs, reference_polygons.box_iou_quadri(quads[:20], quads[20:], mode).diagonal())
    assert ops.box_iou_quadri(quads[:0], quads, mode).shape == (0, 40)


def test_nms_quadri_falls_at_the_threshold_whatever_the_labels():
    whole = torch.tensor([0.0, 0, 10, 0, 10, 10, 0, 10])
    half = torch.tensor([0.0, 0, 10, 0, 10, 5, 0, 5])
    boxes = torch.stack([whole, half, whole + 50])
    scores, labels = torch.tensor([0.5, 0.9, 0.7]), torch.tensor([0, 1, 2])
    dets, keep = ops.nms_quadri(boxes, scores, 0.5)  # an IoU of a half
    assert keep.tolist() == [1, 2] and dets.shape == (2, 9)
    assert ops.nms_quadri(boxes, scores, 0.5000001)[1].tolist() == [1, 2, 0]
    assert ops.nms_quadri(boxes, scores, 0.5, labels)[1].tolist() == [1, 2]
    nothing, none = ops.nms_quadri(boxes[:0], scores[:0], 0.5)
    assert nothing.shape == (0, 8) and none is None


def test_min_area_polygons():
    """What mmcv's own tests expect."""
    grid = [1.0, 1, 2, 2, 1, 2, 2, 1, 1, 3, 3, 1, 2, 3, 3, 2, 1.5, 1.5]
    long = [*grid[:2], 8.0, 8, *grid[4:]]
    expected = [3.0, 1, 1, 1, 1, 3, 3, 3]
    turned = [8.0, 8, 2.3243, 0.0541, 0.0541, 1.6757, 5.7297, 9.6216]
    close(ops.min_area_polygons(torch.tensor([grid, long])), torch.tensor([expected, turned]), 1e-4)


def test_points_in_polygons():
    quads = polygons()[1].float()
    points = torch.rand(50, 2) * 60
    found = ops.points_in_polygons(points, quads)
    assert found.dtype == torch.float32 and 0 < found.sum() < found.numel()
    for i, point in enumerate(points.double().tolist()):
        for j, quad in enumerate(quads):
            assert found[i, j] == reference_polygons.contains(
                reference_polygons.points_of(quad), point
            )


def test_diff_iou_rotated_2d():
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
        a, b = (x[0, torch.arange(40) != 3] for x in (a, b))  # not where the boxes coincide
        close(a, b, 1e-3)


def test_sort_vertices():
    """In the order of angles from the x axis on, by the comments of mmcv's kernel."""
    vertices, mask = torch.zeros(1, 3, 24, 2), torch.zeros(1, 3, 24, dtype=torch.bool)
    angle = torch.tensor([3.0, 0.1, 6.2, 4.0, 1.5])
    places = torch.tensor([0, 5, 8, 9, 23])
    vertices[0, :2, places] = torch.stack([angle.cos(), angle.sin()], 1)
    mask[0, 0, places] = True
    mask[0, 1, places[:2]] = True
    found = mmcv._ext.diff_iou_rotated_sort_vertices_forward(vertices, mask, mask.sum(2).int())
    assert found.tolist() == [[[5, 23, 0, 9, 8, 5, 10, 10, 10], [8] * 9, [8] * 9]]


def test_the_angle_is_in_radians_and_clockwise():
    wide = torch.tensor([[20.0, 20, 20, 4, 0]])
    high = torch.tensor([[20.0, 20, 4, 20, torch.pi / 2]])
    close(ops.box_iou_rotated(wide, high), torch.ones(1, 1), 1e-6)
    # Down to the right, as y points down: the box's corner is at (27, 27).
    turned = torch.tensor([[20.0, 20, 20, 1, torch.pi / 4]])
    corner = torch.tensor([[26.0, 26, 1, 1, 0]])
    assert ops.box_iou_rotated(turned, corner) > 0
    assert ops.box_iou_rotated(turned, corner, clockwise=False) == 0


def test_nms_rotated_falls_at_the_threshold_whatever_the_labels():
    boxes = torch.tensor([[20.0, 20, 10, 10, 0], [20, 20, 10, 5, 0], [50, 50, 4, 4, 1]])
    scores, labels = torch.tensor([0.5, 0.9, 0.7]), torch.tensor([0, 1, 2])
    dets, keep = ops.nms_rotated(boxes, scores, 0.5)  # an IoU of a half
    assert keep.tolist() == [1, 2] and dets.shape == (2, 6)
    assert torch.equal(dets, torch.cat([boxes, scores[:, None]], 1)[keep])
    assert ops.nms_rotated(boxes, scores, 0.5000001)[1].tolist() == [1, 2, 0]
    assert ops.nms_rotated(boxes, scores, 0.5, labels)[1].tolist() == [1, 2]
    nothing, none = ops.nms_rotated(boxes[:0], scores[:0], 0.5)
    assert nothing.shape == (0, 5) and none is None


@pytest.mark.parametrize("mode", ["iou", "iof"])
@pytest.mark.parametrize("offset", [0, 1])
def test_bbox_overlaps(mode, offset):
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


def test_chamfer_distance():
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


ROIS = torch.tensor([[0.0, 2, 3, 11, 14], [1, -3, 0.4, 30, 6.6], [0, 5, 5, 5.5, 5.2]])


@pytest.mark.parametrize("aligned", [None, True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align(aligned, sampling_ratio):
    x = random(2, 3, 10, 12).requires_grad_()
    y = x.detach().clone().requires_grad_()
    choice = {} if aligned is None else {"aligned": aligned}
    layer = ops.RoIAlign((3, 4), 0.5, sampling_ratio, **choice)
    ours = layer(x, ROIS)
    theirs = torchvision.ops.roi_align(y, ROIS, (3, 4), 0.5, sampling_ratio, aligned is not False)
    close(ours, theirs)
    ours.cos().sum().backward()
    theirs.cos().sum().backward()
    close(x.grad, y.grad)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_of_maxima(aligned, sampling_ratio):
    x = random(2, 3, 10, 12).double().requires_grad_()
    layer = ops.RoIAlign((3, 4), 0.5, sampling_ratio, "max", aligned)
    ours = layer(x, ROIS.double())
    args = (ROIS.double(), (3, 4), 0.5, sampling_ratio, aligned)
    expected, grad = reference.roi_align_max(x.detach(), *args, lambda value: -value.sin())
    close(ours, expected, 1e-9)
    ours.cos().sum().backward()
    close(x.grad, grad, 1e-9)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align_rotated(aligned, clockwise, sampling_ratio):
    x = random(2, 2, 10, 12).requires_grad_()
    rois = torch.tensor(
        [[0.0, 9, 8, 12, 6, 0.7], [1, 20, 4, 9, 15, -2.5], [0, 6, 6, 0.5, 0.4, 1.0]]
    )
    bins = ((3, 2), 0.5, sampling_ratio, aligned, clockwise)
    ours = ops.RoIAlignRotated(*bins)(x, rois)
    close(ours, reference.roi_align_rotated(x.detach(), rois, *bins), 1e-4)
    ours.cos().sum().backward()
    # The op is linear in the map: <grad, x> is the derivative along x.
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


@pytest.mark.parametrize("clockwise", [True, False])
@pytest.mark.parametrize("samples", [0, 2])
def test_riroi_align_rotated(clockwise, samples):
    x = random(2, 8, 10, 12).requires_grad_()
    rois = torch.tensor(
        [[0.0, 9, 8, 12, 6, 0.7], [1, 20, 4, 9, 15, -2.5], [0, 6, 6, 0.5, 0.4, 1.0]]
    )
    bins = ((3, 2), 0.5, samples, 4, clockwise)
    ours = ops.RiRoIAlignRotated(*bins)(x, rois)
    close(ours, reference.riroi_align_rotated(x.detach(), rois, *bins), 1e-4)
    ours.cos().sum().backward()
    # The op is linear in the map: <grad, x> is the derivative along x.
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


@pytest.mark.parametrize("points", [1, 5])
def test_rotated_feature_align(points):
    x = random(2, 3, 6, 7).requires_grad_()
    g = torch.Generator().manual_seed(1)
    size = torch.tensor([48.0, 56, 30, 20, 6])
    boxes = torch.rand(2, 6, 7, 5, generator=g) * size - torch.tensor([4.0, 4, 0, 0, 3])
    ours = ops.rotated_feature_align(x, boxes, 1 / 8, points)
    expected = reference.rotated_feature_align(x.detach(), boxes, 1 / 8, points)
    close(ours, expected, 1e-4)
    ours.cos().sum().backward()
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


def test_active_rotated_filter():
    x = random(3, 2, 4, 3, 3).requires_grad_()
    g = torch.Generator().manual_seed(1)
    places = torch.stack([torch.randperm(36, generator=g) + 1 for _ in range(8)], 1)
    indices = places.to(torch.int32).view(4, 3, 3, 8)
    ours = ops.active_rotated_filter(x, indices)
    close(ours, reference.active_rotated_filter(x.detach(), indices), 0)
    ours.cos().sum().backward()
    close((x.grad * x).sum(), (-ours.sin() * ours).sum(), 1e-4)


def test_roi_pool():
    x = random(2, 3, 10, 12)
    x[0, 0, 4:8] = 0.25  # the first of equal maxima counts
    rois = torch.cat(
        [ROIS, torch.tensor([[1.0, 8, 8, 2, 2], [0, 40, 40, 50, 50], [0, 0, 0, 23, 19]])]
    )
    expected, argmax = reference.roi_pool(x, rois, (3, 4), 0.5)
    x.requires_grad_()
    ours = ops.RoIPool((3, 4), 0.5)(x, rois)
    assert torch.equal(ours, expected)
    ours.backward(torch.ones_like(ours))
    count = torch.zeros(2, 3, 120)
    for k, c, i, j in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        written = k != 3  # an inverted box keeps what mmcv's buffer had: zeros
        if written and argmax[k, c, i, j] >= 0:
            count[int(rois[k, 0]), c, argmax[k, c, i, j]] += 1
    count[1, :, 0] += 12  # and so its argmax says pixel 0, as in mmcv
    assert torch.equal(x.grad.flatten(2), count)
    assert ops.roi_pool(x, rois[:0], (3, 4), 0.5).shape == (0, 3, 3, 4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 2.0, 1.5])
def test_focal_losses(weighted, gamma):
    x = random(9, 4, scale=3).double().requires_grad_()
    y = x.detach().clone().requires_grad_()
    weight = torch.tensor([0.5, 2, 1, 3], dtype=torch.double) if weighted else None
    target = torch.tensor([0, 1, 2, 3, 4, 4, 0, 3, 2])
    for kind in ("sigmoid", "softmax"):
        t = target if kind == "sigmoid" else target.where(target < 4, -1)
        if kind == "softmax" and weighted:
            t = target % 4  # of a class to ignore, mmcv reads a weight that is not there
        loss = getattr(reference, f"{kind}_focal_loss")(y, t, gamma, 0.3, weight)
        function = getattr(ops, f"{kind}_focal_loss")
        close(function(x, t, gamma, 0.3, weight, "none"), loss, 1e-6)
        close(function(x, t, gamma, 0.3, weight, "sum"), loss.sum(), 1e-6)
        if kind == "softmax":
            ours = detops.softmax_focal_loss(x.detach(), t, 0.3, gamma, weight)
            close(ours, loss.detach(), 1e-6)
        mean = function(x, t, gamma, 0.3, weight)  # over rows
        close(mean, loss.sum() / 9, 1e-6)
        x.grad = y.grad = None
        mean.backward()
        (loss.sum() / 9).backward()
        close(x.grad, y.grad, 1e-6)


@pytest.mark.parametrize("modulated", [False, True])
@pytest.mark.parametrize("images", [1, 3])
def test_deform_conv2d(modulated, images):
    x, weight = random(images, 4, 7, 8), random(6, 2, 3, 3, seed=1)
    offset, mask = random(images, 2 * 18, 4, 4, seed=2), random(images, 2 * 9, 4, 4, seed=3)
    bias = random(6, seed=4)
    given = [x, offset, mask, weight, bias] if modulated else [x, offset, weight]
    theirs = [t.clone().requires_grad_() for t in given]
    ours = [t.requires_grad_() for t in given]
    window = ((2, 2), (1, 1), (1, 1))
    function = ops.modulated_deform_conv2d if modulated else ops.deform_conv2d
    result = function(*ours, *window, 2, 2)
    if modulated:
        a, o, m, w, b = theirs
        expected = deform_conv2d_reference(a, o, w, b, *window, mask=m, edge_gradient=False)
    else:
        a, o, w = theirs
        expected = deform_conv2d_reference(a, o, w, None, *window, edge_gradient=False)
    close(result, expected, 1e-4)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    for ours_t, theirs_t in zip(ours, theirs, strict=True):
        close(ours_t.grad, theirs_t.grad, 1e-4)


def test_an_offset_larger_than_the_output_is_read_as_it_lies():
    """DyHead hands a convolution of stride 2 the offset of the full map."""
    x, weight = random(2, 3, 8, 8), random(5, 3, 3, 3, seed=1)
    both = random(2, 27, 8, 8, seed=2).requires_grad_()
    offset, mask = both[:, :18], both[:, 18:].sigmoid()
    result = ops.modulated_deform_conv2d(x, offset, mask, weight, None, 2, 1)
    assert result.shape == (2, 5, 4, 4)
    other = both.detach().clone().requires_grad_()
    rows = [
        part.reshape(2, -1)[:, : planes * 16].view(2, planes, 4, 4)
        for part, planes in ((other[:, :18], 18), (other[:, 18:].sigmoid(), 9))
    ]
    expected = deform_conv2d_reference(
        x, rows[0], weight, None, (2, 2), (1, 1), mask=rows[1], edge_gradient=False
    )
    close(result, expected, 1e-4)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    assert (other.grad == 0).any()
    close(both.grad, other.grad, 1e-4)
    with pytest.raises(RuntimeError, match="must have 18 planes of 8 x 8"):
        ops.modulated_deform_conv2d(x, offset[..., :4], mask, weight, None, 1, 1)


@pytest.mark.parametrize("function", ["compiled", "python"])
def test_multi_scale_deformable_attention(function):
    """Also the loop in Python that mmcv runs on a CPU."""
    from mmcv.ops import multi_scale_deform_attn as theirs

    shapes = torch.tensor([[4, 5], [2, 3]])
    start = torch.tensor([0, 20])
    given = [random(2, 26, 2, 4), torch.rand(2, 7, 2, 2, 3, 2), torch.rand(2, 7, 2, 2, 3)]
    first = [t.clone().requires_grad_() for t in given]
    second = [t.clone().requires_grad_() for t in given]
    if function == "compiled":
        attend = theirs.MultiScaleDeformableAttnFunction.apply
        result = attend(first[0], shapes, start, *first[1:], 64)
    else:
        result = theirs.multi_scale_deformable_attn_pytorch(first[0], shapes, *first[1:])
    assert "detops" in str(theirs.multi_scale_deformable_attn_pytorch.__code__.co_filename)
    expected = reference_ops.ms_deform_attn(second[0], shapes, *second[1:])
    close(result, expected)
    result.cos().sum().backward()
    expected.cos().sum().backward()
    for a, b in zip(first, second, strict=True):
        close(a.grad, b.grad, 1e-4)


def test_versions_are_told():
    assert ops.get_compiler_version().startswith("detops ")
    assert ops.get_compiling_cuda_version()


def test_carafe():
    features, masks = random(2, 6, 5, 4).requires_grad_(), random(2, 18, 10, 8, seed=1)
    masks = masks.softmax(1).requires_grad_()
    grad = random(2, 6, 10, 8, seed=2)
    ours = torch.autograd.grad(ops.carafe(features, masks, 3, 2, 2), (features, masks), grad)
    neighbours = torch.nn.functional.unfold(features, 3, padding=1).view(2, 2, 3, 9, 5, 4)
    larger = neighbours.repeat_interleave(2, -2).repeat_interleave(2, -1)
    expected = (larger * masks.view(2, 2, 1, 9, 10, 8)).sum(3).flatten(1, 2)
    close(ops.carafe(features, masks, 3, 2, 2), expected)
    for a, b in zip(ours, torch.autograd.grad(expected, (features, masks), grad), strict=True):
        close(a, b)


@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
def test_masked_conv2d(padding):
    x, weight, bias = random(1, 3, 9, 7), random(4, 3, 3, 3, seed=1), random(4, seed=2)
    whole = torch.nn.functional.conv2d(x, weight, bias, padding=padding)
    mask = torch.zeros(1, 9, 7)
    height, width = min(whole.size(2), 9), min(whole.size(3), 7)
    mask[0, :height, :width] = random(height, width, seed=3)
    chosen = torch.zeros(whole.shape[2:], dtype=torch.bool)
    chosen[:height, :width] = mask[0, :height, :width] > 0
    close(ops.masked_conv2d(x, mask, weight, bias, padding), whole * chosen)
    assert not ops.masked_conv2d(x, -mask.abs(), weight, bias, padding).any()


def test_border_align():
    x = random(2, 12, 7, 6).double().requires_grad_()
    boxes = random_boxes(8).view(2, 4, 4).double() / 8
    ours = ops.border_align(x, boxes, 4)
    expected, grad = reference.border_align(x.detach(), boxes, 4, lambda value: -value.sin())
    close(ours, expected, 1e-9)
    ours.cos().sum().backward()
    close(x.grad, grad, 1e-9)


def test_prroi_pool():
    x, rois = random(2, 3, 10, 12).requires_grad_(), ROIS.clone().requires_grad_()
    ours = ops.PrRoIPool((3, 4), 0.5)(x, rois)
    close(ours, reference.prroi_pool(x.detach(), ROIS, (3, 4), 0.5), 1e-4)
    grad = random(*ours.shape, seed=1)
    to_x, to_rois = torch.autograd.grad(ours, (x, rois), grad)
    # The op is linear in the map; in the boxes, by differences of the reference's values.
    close((to_x * x).sum(), (grad * ours).sum(), 1e-4)
    assert not to_rois[:, 0].any()
    for k, column in torch.cartesian_prod(torch.arange(3), torch.arange(1, 5)).tolist():
        moved = [ROIS.double(), ROIS.double()]
        for sign, boxes in zip((1, -1), moved, strict=True):
            boxes[k, column] += sign * 1e-4
        high, low = (reference.prroi_pool(x.detach(), boxes, (3, 4), 0.5) for boxes in moved)
        close(to_rois[k, column], ((high - low) * grad).sum() / 2e-4, 1e-3)


def test_deform_roi_pool():
    x = random(2, 3, 12, 10).requires_grad_()
    boxes = random_boxes(4)
    rois = torch.cat([torch.tensor([0.0, 1, 0, 1])[:, None], boxes / 5], 1)
    none = ops.deform_roi_pool(x, rois, None, (3, 2), 0.9, 2)
    close(none, torchvision.ops.roi_align(x, rois, (3, 2), 0.9, 2, aligned=True))
    # The same offset in every bin moves the whole RoI.
    offset = torch.tensor([0.3, -0.2]).view(1, 2, 1, 1).expand(4, 2, 3, 2).clone()
    size = rois[:, 3:] - rois[:, 1:3]
    moved = rois.clone()
    moved[:, 1:] += (size * 0.1 * torch.tensor([0.3, -0.2])).repeat(1, 2)
    expected = torchvision.ops.roi_align(x, moved, (3, 2), 0.9, 2, aligned=True)
    pooled = ops.deform_roi_pool(x, rois, offset.requires_grad_(), (3, 2), 0.9, 2, 0.1)
    close(pooled, expected, 1e-4)
    grad = random(4, 3, 3, 2, seed=5)
    to_x, to_offset = torch.autograd.grad(pooled, (x, offset), grad)
    close(to_x, torch.autograd.grad(expected, x, grad)[0], 1e-4)
    assert to_offset.abs().sum() > 0
