"""Calls of the ops on boxes, rotated boxes and polygons."""

from functools import partial

import torch
from call import Call

import detops
from detops.bench.case import clustered


def clustered_boxes(generator, count=1300, columns=4, labels=0, dtype=torch.float32):
    boxes, scores = clustered(generator, count)
    if columns == 5:
        angles = torch.rand(count, 1, generator=generator) * 360
        boxes = torch.cat([detops.box_convert(boxes, "xyxy", "cxcywh"), angles], 1)
    tensors = {"boxes": boxes.to(dtype), "scores": scores.to(dtype)}
    if labels:
        tensors["idxs"] = torch.randint(labels, (count,), generator=generator)
    return tensors


def _fuse(boxes, scores, labels, conf_type):
    """Fuses a model with a second one, shifted by two pixels and half as confident."""
    models = [boxes, boxes + 2], [scores, scores / 2], [labels, labels]
    return detops.weighted_box_fusion(*models, [1.0, 2.0], conf_type=conf_type)


def _labelled(generator):
    tensors = clustered_boxes(generator, count=300, labels=2)
    return {"labels" if name == "idxs" else name: t for name, t in tensors.items()}


def _suppressions():
    for name, columns in (("nms", 4), ("nms_rotated", 5)):
        function = partial(getattr(detops, name), iou_threshold=0.5)
        yield Call(name, function, partial(clustered_boxes, columns=columns), synchronisations=1)
        function = partial(getattr(detops, f"batched_{name}"), iou_threshold=0.5)
        make = partial(clustered_boxes, columns=columns, labels=3)
        yield Call(f"batched_{name}", function, make, synchronisations=1)
        limited = partial(function, score_threshold=0.2, max_output=40)
        yield Call(f"batched_{name}, 40 above 0.2", limited, make, synchronisations=1)
    yield Call("nms_match", partial(detops.nms_match, iou_threshold=0.5), clustered_boxes)
    yield Call("soft_nms, the first 30", partial(detops.soft_nms, max_output=30),
               partial(clustered_boxes, count=300), synchronisations=1)  # fmt: skip
    yield Call("nms, float16", partial(detops.nms, iou_threshold=0.5),
               partial(clustered_boxes, dtype=torch.float16), synchronisations=1)  # fmt: skip
    padded = partial(detops.nms_padded, iou_threshold=0.5)
    yield Call("nms_padded", padded, clustered_boxes)
    yield Call("nms_padded, 100 of 3 classes", partial(padded, max_output=100),
               partial(clustered_boxes, labels=3))  # fmt: skip
    for method in ("linear", "gaussian", "naive"):
        function = partial(detops.soft_nms, method=method)
        yield Call(
            f"soft_nms, {method}", function, partial(clustered_boxes, count=300), synchronisations=1
        )
    for method in ("linear", "gaussian"):
        function = partial(detops.matrix_nms, method=method)
        make = partial(clustered_boxes, count=700, labels=2)
        yield Call(f"matrix_nms, {method}", function, make, synchronisations=1)
    for conf_type in ("avg", "absent_model_aware_avg"):
        fuse = partial(_fuse, conf_type=conf_type)
        yield Call(f"weighted_box_fusion, {conf_type}", fuse, _labelled, synchronisations=1)


def _pairs(generator, first=150, second=70, columns=4, names=("boxes1", "boxes2")):
    boxes = clustered_boxes(generator, first, columns)["boxes"]
    near = boxes[:second] + 3 * torch.randn(second, columns, generator=generator)
    return dict(zip(names, (boxes, near), strict=True))


def _overlaps():
    differentiable = ("boxes1", "boxes2")
    for name in ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        yield Call(name, getattr(detops, name), _pairs, differentiable)
    pairs_of_equal_count = partial(_pairs, second=150)
    yield Call("box_iou, iof", partial(detops.box_iou, mode="iof"), _pairs, differentiable)
    for mode in ("iou", "iof"):
        function = partial(detops.box_iou, mode=mode, aligned=True)
        yield Call(f"box_iou, {mode}, aligned", function, pairs_of_equal_count, differentiable)
    for name in ("generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        function = partial(getattr(detops, name), aligned=True)
        yield Call(f"{name}, aligned", function, pairs_of_equal_count, differentiable)
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        yield Call(name, getattr(detops, name), pairs_of_equal_count, differentiable)
    yield Call("match_boxes", detops.match_boxes, _pairs)

    def cost_inputs(generator, dtype=torch.float32):
        tensors = {"cost": torch.randn(5, 40, 30, generator=generator).to(dtype)}
        return tensors | {"num_objects": torch.tensor([30, 0, 7, 29, 1])}

    yield Call("linear_assignment", detops.linear_assignment, cost_inputs)
    yield Call("linear_assignment, float16", detops.linear_assignment,
               partial(cost_inputs, dtype=torch.float16))  # fmt: skip
    rotated_pairs = partial(_pairs, columns=5)
    yield Call("box_iou_rotated", detops.box_iou_rotated, rotated_pairs)
    yield Call("box_iou_rotated, iof", partial(detops.box_iou_rotated, mode="iof"), rotated_pairs)
    aligned = partial(detops.box_iou_rotated, mode="iof", aligned=True)
    yield Call("box_iou_rotated of pairs", aligned, partial(rotated_pairs, second=150))
    for mode in ("iou", "iof"):
        function = partial(detops.rotated_iou, mode=mode)
        yield Call(
            f"rotated_iou, {mode}", function, partial(rotated_pairs, second=150), differentiable
        )
    boxes_and_anchors = partial(pairs_of_equal_count, names=("boxes", "anchors"))
    yield Call("encode_boxes", detops.encode_boxes, boxes_and_anchors, ("boxes", "anchors"))

    def points(generator):
        return {
            "points1": torch.rand(3, 45, 2, generator=generator),
            "points2": torch.rand(3, 70, 2, generator=generator),
        }

    yield Call("chamfer_distance", lambda **sets: detops.chamfer_distance(**sets)[:2], points,
               ("points1", "points2"))  # fmt: skip

    def deltas(generator):
        values = torch.randn(150, 8, generator=generator)
        return {"deltas": values, "anchors": clustered_boxes(generator, 150)["boxes"]}

    yield Call("decode_boxes", detops.decode_boxes, deltas, ("deltas", "anchors"))


def _point_sets_and_quads(generator, count=60):
    corner = torch.rand(count, 1, 2, generator=generator) * 50
    unit = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    quads = corner + unit * 20 + 6 * torch.rand(count, 4, 2, generator=generator)
    sets = corner + 10 + 9 * torch.randn(count, 9, 2, generator=generator)
    return {"pointsets": sets.flatten(1), "polygons": quads.flatten(1)}


def _polygon_ops():
    yield Call("convex_iou", detops.convex_iou, _point_sets_and_quads)
    yield Call("convex_giou", detops.convex_giou, _point_sets_and_quads, ("pointsets",))

    def sets(generator):
        return {"pointsets": _point_sets_and_quads(generator)["pointsets"]}

    yield Call("min_area_polygons", detops.min_area_polygons, sets)

    def pairs(generator, second=60):
        quads = _point_sets_and_quads(generator)["polygons"]
        return {
            "boxes1": quads,
            "boxes2": (quads + torch.randn(60, 8, generator=generator))[:second],
        }

    yield Call("box_iou_quadri", detops.box_iou_quadri, partial(pairs, second=37))
    aligned = partial(detops.box_iou_quadri, mode="iof", aligned=True)
    yield Call("box_iou_quadri of pairs", aligned, pairs)

    def scored(generator):
        quads = _point_sets_and_quads(generator, 700)["polygons"]
        return {"boxes": quads, "scores": torch.rand(700, generator=generator)}

    yield Call(
        "nms_quadri", partial(detops.nms_quadri, iou_threshold=0.3), scored, synchronisations=1
    )

    def points(generator):
        quads = _point_sets_and_quads(generator)["polygons"]
        return {"points": torch.rand(130, 2, generator=generator) * 70, "polygons": quads}

    yield Call("points_in_polygons", detops.points_in_polygons, points)


CALLS = [*_suppressions(), *_overlaps(), *_polygon_ops()]
