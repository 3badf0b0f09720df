"""One list of small calls that reaches every op with a kernel, forward and backward."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import detops
from detops.bench.case import clustered

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Call:
    """A function and the tensors that it takes by name."""

    name: str
    function: Callable
    make: Callable[[torch.Generator], Tensors]
    wants: tuple[str, ...] = ()  # the tensors with gradients
    waits: int = 0  # for the device: once, where the size of the result depends on values

    def tensors(self, device="cpu", seed=0) -> Tensors:
        """Others of the same shapes with another seed."""
        made = self.make(torch.Generator().manual_seed(seed))
        return {name: t.to(device).requires_grad_(name in self.wants) for name, t in made.items()}

    def forward(self, tensors: Tensors) -> list[Tensor]:
        """The outputs."""
        outputs = self.function(**tensors)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    def backward(self, tensors: Tensors, outputs: list[Tensor]) -> list[Tensor]:
        """The gradients of the tensors that have one, for gradients of the outputs from -1 to 1."""
        if not self.wants:
            return []
        grads = [
            torch.linspace(-1, 1, o.numel(), device=o.device).view(o.shape).to(o.dtype)
            for o in outputs
        ]
        return list(torch.autograd.grad(outputs, [tensors[name] for name in self.wants], grads))

    def results(self, tensors: Tensors) -> list[Tensor]:
        """Outputs and gradients."""
        outputs = self.forward(tensors)
        return [o.detach() for o in outputs] + self.backward(tensors, outputs)


def _nms(generator, count=1300, columns=4, labels=0, dtype=torch.float32):
    boxes, scores = clustered(generator, count)
    if columns == 5:
        angles = torch.rand(count, 1, generator=generator) * 360
        boxes = torch.cat([detops.box_convert(boxes, "xyxy", "cxcywh"), angles], 1)
    tensors = {"boxes": boxes.to(dtype), "scores": scores.to(dtype)}
    if labels:
        tensors["idxs"] = torch.randint(labels, (count,), generator=generator)
    return tensors


def _fuse(boxes, scores, labels, conf_type):
    """Of a model, and of one that is two pixels beside it and half as sure."""
    of_models = [boxes, boxes + 2], [scores, scores / 2], [labels, labels]
    return detops.weighted_box_fusion(*of_models, [1.0, 2.0], conf_type=conf_type)


def _labelled(generator):
    tensors = _nms(generator, count=300, labels=2)
    return {"labels" if name == "idxs" else name: t for name, t in tensors.items()}


def _suppressions():
    for name, columns in (("nms", 4), ("nms_rotated", 5)):
        function = partial(getattr(detops, name), iou_threshold=0.5)
        yield Call(name, function, partial(_nms, columns=columns), waits=1)
        function = partial(getattr(detops, f"batched_{name}"), iou_threshold=0.5)
        make = partial(_nms, columns=columns, labels=3)
        yield Call(f"batched_{name}", function, make, waits=1)
        limited = partial(function, score_threshold=0.2, max_output=40)
        yield Call(f"batched_{name}, 40 above 0.2", limited, make, waits=1)
    yield Call("nms_match", partial(detops.nms_match, iou_threshold=0.5), _nms)
    yield Call("soft_nms, the first 30", partial(detops.soft_nms, max_output=30),
               partial(_nms, count=300), waits=1)  # fmt: skip
    yield Call("nms, float16", partial(detops.nms, iou_threshold=0.5),
               partial(_nms, dtype=torch.float16), waits=1)  # fmt: skip
    padded = partial(detops.nms_padded, iou_threshold=0.5)
    yield Call("nms_padded", padded, _nms)
    yield Call("nms_padded, 100 of 3 classes", partial(padded, max_output=100),
               partial(_nms, labels=3))  # fmt: skip
    for method in ("linear", "gaussian", "naive"):
        function = partial(detops.soft_nms, method=method)
        yield Call(f"soft_nms, {method}", function, partial(_nms, count=300), waits=1)
    for method in ("linear", "gaussian"):
        function = partial(detops.matrix_nms, method=method)
        make = partial(_nms, count=700, labels=2)
        yield Call(f"matrix_nms, {method}", function, make, waits=1)
    for conf_type in ("avg", "absent_model_aware_avg"):
        fuse = partial(_fuse, conf_type=conf_type)
        yield Call(f"weighted_box_fusion, {conf_type}", fuse, _labelled, waits=1)


HEIGHT, WIDTH, SCALE = 19, 26, 0.25
# Channels that fill vectors of 16 bytes, and some that do not.
MAPS = [
    ("NCHW", torch.float32, 37),
    ("NCHW", torch.float16, 40),
    ("channels_last", torch.float32, 40),
    ("channels_last", torch.float16, 40),
    ("channels_last", torch.bfloat16, 37),
]
FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


def _map(generator, layout, dtype, *shape):
    x = torch.randn(shape, generator=generator).to(dtype)
    return x.contiguous(memory_format=FORMATS[layout])


def _rois(generator, count=50, rotated=False):
    """Some reach beyond the map, one is empty, one is NaN."""
    index = torch.randint(2, (count, 1), generator=generator).float()
    extent = torch.tensor([WIDTH, HEIGHT]) / SCALE
    low = (torch.rand(count, 2, generator=generator) * 1.2 - 0.2) * extent
    side = torch.rand(count, 2, generator=generator) * extent
    side[0] = 0
    low[1] = float("nan")
    if not rotated:
        return torch.cat([index, low, low + side], 1)
    angle = torch.rand(count, 1, generator=generator) * 360
    return torch.cat([index, low + side / 2, side, angle], 1)


def _pooled(generator, layout, dtype, channels, rotated=False):
    return {
        "input": _map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH),
        "boxes": _rois(generator, rotated=rotated),
    }


def _deformed(generator, layout, dtype, channels):
    made = _pooled(generator, layout, dtype, channels)
    return made | {"offset": torch.randn(50, 2, 3, 3, generator=generator)}


def _pyramid(generator, layout, dtype, channels):
    sizes = [(HEIGHT >> i, WIDTH >> i) for i in range(4)]
    maps = [_map(generator, layout, dtype, 2, channels, *size) for size in sizes]
    return {f"inputs[{i}]": x for i, x in enumerate(maps)} | {"boxes": _rois(generator)}


def _multiscale(boxes, **maps):
    scales = [SCALE / 2**i for i in range(4)]
    # The canonical scale spreads boxes of at most 100 pixels over all levels.
    return detops.multiscale_roi_align(list(maps.values()), boxes, 3, scales, 2, canonical_scale=30)


def _poolings():
    sized = dict(output_size=3, spatial_scale=SCALE)
    align = partial(detops.roi_align, **sized)
    rotated = partial(detops.roi_align_rotated, **sized, sampling_ratio=2)
    oriented = partial(detops.riroi_align_rotated, **sized, sampling_ratio=2)
    levels = ("inputs[0]", "inputs[1]", "inputs[2]", "inputs[3]")
    for layout, dtype, channels in MAPS:
        kind = f"{layout}, {str(dtype).removeprefix('torch.')}"
        make = partial(_pooled, layout=layout, dtype=dtype, channels=channels)
        turned = partial(make, rotated=True)
        groups = partial(make, channels=9 * channels)
        deformed = partial(_deformed, layout=layout, dtype=dtype, channels=channels)
        pyramid = partial(_pyramid, layout=layout, dtype=dtype, channels=channels)
        deform = partial(
            detops.deform_psroi_pooling, **sized, output_channels=channels, trans_std=0.1
        )
        for name, function, tensors, wants in (
            ("roi_align", partial(align, sampling_ratio=2), make, ("input",)),
            ("roi_align, adaptive", partial(align, aligned=True), make, ("input",)),
            ("roi_align_rotated", rotated, turned, ("input",)),
            (
                "riroi_align_rotated",
                oriented,
                partial(turned, channels=channels // 8 * 8),
                ("input",),
            ),
            ("roi_align_max", partial(detops.roi_align_max, **sized), make, ("input",)),
            ("prroi_pool", partial(detops.prroi_pool, **sized), make, ("input", "boxes")),
            ("roi_pool", partial(detops.roi_pool, **sized), make, ("input",)),
            ("ps_roi_align", partial(detops.ps_roi_align, **sized), groups, ("input",)),
            ("ps_roi_pool", partial(detops.ps_roi_pool, **sized), groups, ("input",)),
            ("deform_psroi_pooling", deform, deformed, ("input", "offset")),
            (
                "deform_roi_pool",
                partial(detops.deform_roi_pool, **sized, gamma=0.3),
                deformed,
                ("input", "offset"),
            ),
            ("multiscale_roi_align", _multiscale, pyramid, levels),
        ):
            yield Call(f"{name}, {kind}", function, tensors, wants)


def _convolved(generator, layout, dtype, groups, masked):
    channels = 32
    x = _map(generator, layout, dtype, 2, channels, 9, 11)
    make = {
        "input": x,
        "offset": 2 * torch.randn(2, 36, 9, 11, generator=generator),
        "weight": torch.randn(20, channels // groups, 3, 3, generator=generator),
        "bias": torch.randn(20, generator=generator),
    }
    if masked:
        make["mask"] = torch.rand(2, 18, 9, 11, generator=generator)
    return {name: t.to(dtype) for name, t in make.items()}


def _convolutions():
    function = partial(detops.deform_conv2d, padding=1)
    for layout, dtype, groups, masked in (
        ("NCHW", torch.float32, 1, True),
        ("NCHW", torch.float32, 4, False),
        ("channels_last", torch.float32, 1, True),
        ("channels_last", torch.float16, 1, True),
        ("NCHW", torch.bfloat16, 1, False),
    ):
        wants = ("input", "offset", "weight", "bias") + ("mask",) * masked
        yield Call(
            f"deform_conv2d, {layout}, {str(dtype).removeprefix('torch.')}, {groups} groups",
            function,
            partial(_convolved, layout=layout, dtype=dtype, groups=groups, masked=masked),
            wants,
        )


def _attended(generator, channels, dtype):
    shapes = torch.tensor([[12, 9], [6, 5], [1, 3]])
    sizes = shapes.prod(1)
    shape = (2, 21, 4, 3, 2)
    return {
        "value": torch.randn(2, int(sizes.sum()), 4, channels, generator=generator).to(dtype),
        "spatial_shapes": shapes,
        "level_start_index": sizes.cumsum(0) - sizes,
        "sampling_locations": torch.rand(*shape, 2, generator=generator) * 1.2 - 0.1,
        "attention_weights": torch.rand(shape, generator=generator),
    }


def _attentions():
    wants = ("value", "sampling_locations", "attention_weights")
    for channels, dtype in ((32, torch.float32), (13, torch.float32), (32, torch.bfloat16)):
        name = f"ms_deform_attn, {channels} channels, {str(dtype).removeprefix('torch.')}"
        make = partial(_attended, channels=channels, dtype=dtype)
        yield Call(name, detops.ms_deform_attn, make, wants)


def _pairs(generator, first=150, second=70, columns=4, names=("boxes1", "boxes2")):
    boxes = _nms(generator, first, columns)["boxes"]
    near = boxes[:second] + 3 * torch.randn(second, columns, generator=generator)
    return dict(zip(names, (boxes, near), strict=True))


def _overlaps():
    wants = ("boxes1", "boxes2")
    for name in ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        yield Call(name, getattr(detops, name), _pairs, wants)
    matched = partial(_pairs, second=150)
    yield Call("box_iou, iof", partial(detops.box_iou, mode="iof"), _pairs, wants)
    for mode in ("iou", "iof"):
        function = partial(detops.box_iou, mode=mode, aligned=True)
        yield Call(f"box_iou, {mode}, aligned", function, matched, wants)
    for name in ("generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        function = partial(getattr(detops, name), aligned=True)
        yield Call(f"{name}, aligned", function, matched, wants)
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        yield Call(name, getattr(detops, name), matched, wants)
    yield Call("match_boxes", detops.match_boxes, _pairs)

    def costs(generator, dtype=torch.float32):
        made = {"cost": torch.randn(5, 40, 30, generator=generator).to(dtype)}
        return made | {"num_objects": torch.tensor([30, 0, 7, 29, 1])}

    yield Call("linear_assignment", detops.linear_assignment, costs)
    yield Call("linear_assignment, float16", detops.linear_assignment,
               partial(costs, dtype=torch.float16))  # fmt: skip
    turned = partial(_pairs, columns=5)
    yield Call("box_iou_rotated", detops.box_iou_rotated, turned)
    yield Call("box_iou_rotated, iof", partial(detops.box_iou_rotated, mode="iof"), turned)
    aligned = partial(detops.box_iou_rotated, mode="iof", aligned=True)
    yield Call("box_iou_rotated of pairs", aligned, partial(turned, second=150))
    for mode in ("iou", "iof"):
        function = partial(detops.rotated_iou, mode=mode)
        yield Call(f"rotated_iou, {mode}", function, partial(turned, second=150), wants)
    anchored = partial(matched, names=("boxes", "anchors"))
    yield Call("encode_boxes", detops.encode_boxes, anchored, ("boxes", "anchors"))

    def points(generator):
        return {
            "points1": torch.rand(3, 45, 2, generator=generator),
            "points2": torch.rand(3, 70, 2, generator=generator),
        }

    yield Call("chamfer_distance", lambda **sets: detops.chamfer_distance(**sets)[:2], points,
               ("points1", "points2"))  # fmt: skip

    def deltas(generator):
        moves = torch.randn(150, 8, generator=generator)
        return {"deltas": moves, "anchors": _nms(generator, 150)["boxes"]}

    yield Call("decode_boxes", detops.decode_boxes, deltas, ("deltas", "anchors"))


def _classified(generator, dtype=torch.float32):
    logits = torch.randn(117, 9, generator=generator).to(dtype)
    targets = (torch.rand(117, 9, generator=generator) > 0.9).to(dtype)
    return {"inputs": logits, "targets": targets}


def _on_masks():
    for reduction, dtype in (
        ("none", torch.float32),
        ("sum", torch.float32),
        ("mean", torch.float16),
        ("none", torch.bfloat16),
    ):
        yield Call(
            f"sigmoid_focal_loss, {reduction}, {str(dtype).removeprefix('torch.')}",
            partial(detops.sigmoid_focal_loss, reduction=reduction),
            partial(_classified, dtype=dtype),
            ("inputs",),
        )

    for dtype, gamma in ((torch.float32, 2), (torch.float16, 1.5)):

        def labelled(generator, dtype=dtype):
            return {
                "inputs": torch.randn(117, 81, generator=generator).to(dtype),
                "targets": torch.randint(-1, 82, (117,), generator=generator),
                "weight": torch.rand(81, generator=generator),
            }

        yield Call(
            f"softmax_focal_loss, gamma {gamma}, {str(dtype).removeprefix('torch.')}",
            partial(detops.softmax_focal_loss, gamma=gamma),
            labelled,
            ("inputs",),
        )

    def masks(generator):
        return {"masks": torch.rand(5, 33, 41, generator=generator) > 0.98}

    yield Call("masks_to_boxes", detops.masks_to_boxes, masks)

    def two_sets(generator):
        masks = torch.rand(21, 33, 41, generator=generator) > 0.4
        return {"masks1": masks, "masks2": masks[:18].flip(1)}

    def scored(generator):
        masks = (
            torch.rand(21, 33, 41, generator=generator) > torch.linspace(0, 1, 21)[:, None, None]
        )
        return {"masks": masks, "scores": torch.rand(21, generator=generator)}

    yield Call("mask_iou", detops.mask_iou, two_sets)
    yield Call("mask_nms", partial(detops.mask_nms, iou_threshold=0.5), scored, waits=1)

    def small(generator):
        cells = torch.rand(7, 1, 9, 9, generator=generator)
        return {"masks": cells, "boxes": _nms(generator, 7)["boxes"] / 10}

    for threshold in (0.5, -1.0):
        function = partial(detops.paste_masks_in_image, image_shape=(90, 101), threshold=threshold)
        yield Call(f"paste_masks_in_image, {threshold}", function, small)


def _cornered(generator, layout, dtype, channels):
    return {"input": _map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH)}


def _refined(generator, layout, dtype, channels):
    boxes = _rois(generator, 2 * HEIGHT * WIDTH, rotated=True)[:, 1:]
    maps = _map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH)
    return {"features": maps, "boxes": boxes.view(2, HEIGHT, WIDTH, 5)}


def _filters(generator, dtype, most):
    if most is None:
        places = torch.stack([torch.randperm(72, generator=generator) + 1 for _ in range(8)], 1)
    else:
        places = torch.randint(1, most + 1, (72, 8), generator=generator)
    x = torch.randn(5, 3, 8, 3, 3, generator=generator).to(dtype)
    return {"input": x, "indices": places.to(torch.uint8).view(8, 3, 3, 8)}


def _of_maps():
    for dtype, channels in ((torch.float32, 5), (torch.float32, 37), (torch.bfloat16, 5)):
        kind = f"{channels} channels, {str(dtype).removeprefix('torch.')}"

        def sampled(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, channels, HEIGHT, WIDTH, generator=generator).to(dtype)
            return {"input": x, "points": torch.rand(2, 45, 2, generator=generator) * 1.2 - 0.1}

        yield Call(f"point_sample, {kind}", detops.point_sample, sampled, ("input", "points"))

        def reassembled(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, channels, 6, 19, generator=generator).to(dtype)
            return {"features": x, "masks": torch.rand(2, 25, 12, 38, generator=generator)}

        def bordered(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, 4 * channels, HEIGHT, WIDTH, generator=generator).to(dtype)
            return {"input": x, "boxes": _rois(generator, 60)[:, 1:].view(2, 30, 4) * SCALE}

        yield Call(f"border_align, {kind}", detops.border_align, bordered, ("input",))

        function = partial(detops.carafe, kernel_size=5, group_size=1, scale_factor=2)
        yield Call(f"carafe, {kind}", function, reassembled, ("features", "masks"))

        def convolved(generator, dtype=dtype, channels=channels):
            return {
                "features": torch.randn(2, channels, 9, 11, generator=generator).to(dtype),
                "mask": torch.rand(2, 9, 11, generator=generator) > 0.5,
                "weight": torch.randn(13, channels, 3, 3, generator=generator),
                "bias": torch.randn(13, generator=generator),
            }

        yield Call(f"masked_conv2d, {kind}", partial(detops.masked_conv2d, padding=1),
                   convolved, ("features", "weight", "bias"))  # fmt: skip

    for layout, dtype, channels in MAPS[:2] + MAPS[4:]:
        make = partial(_cornered, layout=layout, dtype=dtype, channels=channels)
        for mode in ("top", "bottom", "left", "right"):
            kind = f"{mode}, {layout}, {str(dtype).removeprefix('torch.')}"
            function = partial(detops.corner_pool, mode=mode)
            yield Call(f"corner_pool, {kind}", function, make, ("input",))

    for layout, dtype, channels in (*MAPS, ("NCHW", torch.float32, 3), ("NCHW", torch.float16, 3)):
        make = partial(_refined, layout=layout, dtype=dtype, channels=channels)
        for points in (1, 5):
            kind = f"{points}, {channels}, {layout}, {str(dtype).removeprefix('torch.')}"
            function = partial(detops.rotated_feature_align, spatial_scale=SCALE, points=points)
            yield Call(f"rotated_feature_align, {kind}", function, make, ("features",))

    for dtype in (torch.float32, torch.float16):
        for kind, most in (("permuted", None), ("anywhere", 72)):
            make = partial(_filters, dtype=dtype, most=most)
            name = f"active_rotated_filter, {kind}, {str(dtype).removeprefix('torch.')}"
            yield Call(name, detops.active_rotated_filter, make, ("input",))

    def grouped(generator):
        x = torch.randn(2, 8, 6, 7, generator=generator)
        return {"features": x, "masks": torch.rand(2, 36, 18, 21, generator=generator)}

    function = partial(detops.carafe, kernel_size=3, group_size=4, scale_factor=3)
    yield Call("carafe, 4 groups", function, grouped, ("features", "masks"))


def _hulls(generator, count=60):
    corner = torch.rand(count, 1, 2, generator=generator) * 50
    unit = torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    quads = corner + unit * 20 + 6 * torch.rand(count, 4, 2, generator=generator)
    sets = corner + 10 + 9 * torch.randn(count, 9, 2, generator=generator)
    return {"pointsets": sets.flatten(1), "polygons": quads.flatten(1)}


def _of_polygons():
    yield Call("convex_iou", detops.convex_iou, _hulls)
    yield Call("convex_giou", detops.convex_giou, _hulls, ("pointsets",))

    def sets(generator):
        return {"pointsets": _hulls(generator)["pointsets"]}

    yield Call("min_area_polygons", detops.min_area_polygons, sets)

    def pairs(generator, second=60):
        quads = _hulls(generator)["polygons"]
        return {
            "boxes1": quads,
            "boxes2": (quads + torch.randn(60, 8, generator=generator))[:second],
        }

    yield Call("box_iou_quadri", detops.box_iou_quadri, partial(pairs, second=37))
    aligned = partial(detops.box_iou_quadri, mode="iof", aligned=True)
    yield Call("box_iou_quadri of pairs", aligned, pairs)

    def scored(generator):
        quads = _hulls(generator, 700)["polygons"]
        return {"boxes": quads, "scores": torch.rand(700, generator=generator)}

    yield Call("nms_quadri", partial(detops.nms_quadri, iou_threshold=0.3), scored, waits=1)

    def points(generator):
        quads = _hulls(generator)["polygons"]
        return {"points": torch.rand(130, 2, generator=generator) * 70, "polygons": quads}

    yield Call("points_in_polygons", detops.points_in_polygons, points)


def _random(generator, dtype=torch.float32, **sizes):
    return {n: torch.randn(s, generator=generator).to(dtype) / 4 for n, s in sizes.items()}


def _demos():
    make = partial(_random, x=(33, 31), y=(33, 31))
    yield Call("axpy", detops.axpy, make, ("x", "y"))
    yield Call("axpy, float16", detops.axpy, partial(make, dtype=torch.float16), ("x", "y"))
    yield Call("gdh", lambda x: detops.gdh(x.t()), partial(_random, x=(33, 31)), ("x",))
    for name, (inputs, hidden, outputs) in {"": (5, 15, 1), ", large": (90, 150, 12)}.items():
        sizes = dict(
            input=(20, inputs),
            hidden_weights=(hidden, inputs),
            hidden_bias=(1, hidden),
            output_weights=(outputs, hidden),
            output_bias=(1, outputs),
        )
        yield Call(f"mlp{name}", detops.mlp, partial(_random, **sizes), tuple(sizes))
    sizes = dict(input=(20, 9), weights=(48, 25), bias=(48,), h=(20, 16), c=(20, 16))
    yield Call("lltm_cell", detops.lltm_cell, partial(_random, **sizes), tuple(sizes))
    sizes["input"] = (6, 20, 9)
    yield Call("lltm", detops.lltm, partial(_random, **sizes), tuple(sizes))


CALLS = [
    *_suppressions(),
    *_poolings(),
    *_convolutions(),
    *_attentions(),
    *_overlaps(),
    *_on_masks(),
    *_of_maps(),
    *_of_polygons(),
    *_demos(),
]


def kernel_ops() -> set[str]:
    """The ops of ``torch.ops.detops`` that have a kernel per backend, of their own."""
    names = torch._C._dispatch_get_all_op_names()
    kernels = {
        name.removeprefix("detops::")
        for name in names
        if name.startswith("detops::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    }
    # A public op has the kernel of its raw one; masks are encoded on the host, whatever the device.
    return {name for name in kernels if f"{name}_forward" not in kernels} - {"masks_to_rle"}
