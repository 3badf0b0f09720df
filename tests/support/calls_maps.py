"""Calls of the ops on feature maps."""

from functools import partial

import torch
from call import Call

import detops

HEIGHT, WIDTH, SCALE = 19, 26, 0.25
# Channel counts that fill vectors of 16 bytes, and some that do not.
MAPS = [
    ("NCHW", torch.float32, 37),
    ("NCHW", torch.float16, 40),
    ("channels_last", torch.float32, 40),
    ("channels_last", torch.float16, 40),
    ("channels_last", torch.bfloat16, 37),
]
FORMATS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


def _feature_map(generator, layout, dtype, *shape):
    x = torch.randn(shape, generator=generator).to(dtype)
    return x.contiguous(memory_format=FORMATS[layout])


def _rois(generator, count=50, rotated=False):
    """Returns RoIs: some reach beyond the feature map, one is empty, one is NaN."""
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
        "input": _feature_map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH),
        "boxes": _rois(generator, rotated=rotated),
    }


def _with_offsets(generator, layout, dtype, channels):
    tensors = _pooled(generator, layout, dtype, channels)
    return tensors | {"offset": torch.randn(50, 2, 3, 3, generator=generator)}


def _pyramid_inputs(generator, layout, dtype, channels):
    sizes = [(HEIGHT >> i, WIDTH >> i) for i in range(4)]
    maps = [_feature_map(generator, layout, dtype, 2, channels, *size) for size in sizes]
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
        rotated_inputs = partial(make, rotated=True)
        grouped_inputs = partial(make, channels=9 * channels)
        offset_inputs = partial(_with_offsets, layout=layout, dtype=dtype, channels=channels)
        pyramid = partial(_pyramid_inputs, layout=layout, dtype=dtype, channels=channels)
        deform = partial(
            detops.deform_psroi_pooling, **sized, output_channels=channels, trans_std=0.1
        )
        for name, function, tensors, differentiable in (
            ("roi_align", partial(align, sampling_ratio=2), make, ("input",)),
            ("roi_align, adaptive", partial(align, aligned=True), make, ("input",)),
            ("roi_align_rotated", rotated, rotated_inputs, ("input",)),
            (
                "riroi_align_rotated",
                oriented,
                partial(rotated_inputs, channels=channels // 8 * 8),
                ("input",),
            ),
            ("roi_align_max", partial(detops.roi_align_max, **sized), make, ("input",)),
            ("prroi_pool", partial(detops.prroi_pool, **sized), make, ("input", "boxes")),
            ("roi_pool", partial(detops.roi_pool, **sized), make, ("input",)),
            ("ps_roi_align", partial(detops.ps_roi_align, **sized), grouped_inputs, ("input",)),
            ("ps_roi_pool", partial(detops.ps_roi_pool, **sized), grouped_inputs, ("input",)),
            ("deform_psroi_pooling", deform, offset_inputs, ("input", "offset")),
            (
                "deform_roi_pool",
                partial(detops.deform_roi_pool, **sized, gamma=0.3),
                offset_inputs,
                ("input", "offset"),
            ),
            ("multiscale_roi_align", _multiscale, pyramid, levels),
        ):
            yield Call(f"{name}, {kind}", function, tensors, differentiable)


def _deform_conv_inputs(generator, layout, dtype, groups, masked):
    channels = 32
    x = _feature_map(generator, layout, dtype, 2, channels, 9, 11)
    tensors = {
        "input": x,
        "offset": 2 * torch.randn(2, 36, 9, 11, generator=generator),
        "weight": torch.randn(20, channels // groups, 3, 3, generator=generator),
        "bias": torch.randn(20, generator=generator),
    }
    if masked:
        tensors["mask"] = torch.rand(2, 18, 9, 11, generator=generator)
    return {name: t.to(dtype) for name, t in tensors.items()}


def _convolutions():
    function = partial(detops.deform_conv2d, padding=1)
    for layout, dtype, groups, masked in (
        ("NCHW", torch.float32, 1, True),
        ("NCHW", torch.float32, 4, False),
        ("channels_last", torch.float32, 1, True),
        ("channels_last", torch.float16, 1, True),
        ("NCHW", torch.bfloat16, 1, False),
    ):
        differentiable = ("input", "offset", "weight", "bias") + ("mask",) * masked
        yield Call(
            f"deform_conv2d, {layout}, {str(dtype).removeprefix('torch.')}, {groups} groups",
            function,
            partial(_deform_conv_inputs, layout=layout, dtype=dtype, groups=groups, masked=masked),
            differentiable,
        )


def _attention_inputs(generator, channels, dtype):
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
    differentiable = ("value", "sampling_locations", "attention_weights")
    for channels, dtype in ((32, torch.float32), (13, torch.float32), (32, torch.bfloat16)):
        name = f"ms_deform_attn, {channels} channels, {str(dtype).removeprefix('torch.')}"
        make = partial(_attention_inputs, channels=channels, dtype=dtype)
        yield Call(name, detops.ms_deform_attn, make, differentiable)


def _map_input(generator, layout, dtype, channels):
    return {"input": _feature_map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH)}


def _rotated_align_inputs(generator, layout, dtype, channels):
    boxes = _rois(generator, 2 * HEIGHT * WIDTH, rotated=True)[:, 1:]
    maps = _feature_map(generator, layout, dtype, 2, channels, HEIGHT, WIDTH)
    return {"features": maps, "boxes": boxes.view(2, HEIGHT, WIDTH, 5)}


def _rotated_filter_inputs(generator, dtype, max_index):
    if max_index is None:
        targets = torch.stack([torch.randperm(72, generator=generator) + 1 for _ in range(8)], 1)
    else:
        targets = torch.randint(1, max_index + 1, (72, 8), generator=generator)
    x = torch.randn(5, 3, 8, 3, 3, generator=generator).to(dtype)
    return {"input": x, "indices": targets.to(torch.uint8).view(8, 3, 3, 8)}


def _map_ops():
    for dtype, channels in ((torch.float32, 5), (torch.float32, 37), (torch.bfloat16, 5)):
        kind = f"{channels} channels, {str(dtype).removeprefix('torch.')}"

        def point_inputs(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, channels, HEIGHT, WIDTH, generator=generator).to(dtype)
            return {"input": x, "points": torch.rand(2, 45, 2, generator=generator) * 1.2 - 0.1}

        yield Call(f"point_sample, {kind}", detops.point_sample, point_inputs, ("input", "points"))

        def carafe_inputs(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, channels, 6, 19, generator=generator).to(dtype)
            return {"features": x, "masks": torch.rand(2, 25, 12, 38, generator=generator)}

        def border_inputs(generator, dtype=dtype, channels=channels):
            x = torch.randn(2, 4 * channels, HEIGHT, WIDTH, generator=generator).to(dtype)
            return {"input": x, "boxes": _rois(generator, 60)[:, 1:].view(2, 30, 4) * SCALE}

        yield Call(f"border_align, {kind}", detops.border_align, border_inputs, ("input",))

        function = partial(detops.carafe, kernel_size=5, group_size=1, scale_factor=2)
        yield Call(f"carafe, {kind}", function, carafe_inputs, ("features", "masks"))

        def masked_conv_inputs(generator, dtype=dtype, channels=channels):
            return {
                "features": torch.randn(2, channels, 9, 11, generator=generator).to(dtype),
                "mask": torch.rand(2, 9, 11, generator=generator) > 0.5,
                "weight": torch.randn(13, channels, 3, 3, generator=generator),
                "bias": torch.randn(13, generator=generator),
            }

        yield Call(f"masked_conv2d, {kind}", partial(detops.masked_conv2d, padding=1),
                   masked_conv_inputs, ("features", "weight", "bias"))  # fmt: skip

        def winograd_inputs(generator, dtype=dtype, channels=channels):
            return {
                "input": torch.randn(2, channels, 9, 11, generator=generator).to(dtype),
                "weight": torch.randn(13, channels, 3, 3, generator=generator),
                "bias": torch.randn(13, generator=generator),
            }

        yield Call(f"winograd_conv2d, {kind}", detops.winograd_conv2d, winograd_inputs,
                   ("input", "weight", "bias"))  # fmt: skip

    for layout, dtype, channels in MAPS[:2] + MAPS[4:]:
        make = partial(_map_input, layout=layout, dtype=dtype, channels=channels)
        for mode in ("top", "bottom", "left", "right"):
            kind = f"{mode}, {layout}, {str(dtype).removeprefix('torch.')}"
            function = partial(detops.corner_pool, mode=mode)
            yield Call(f"corner_pool, {kind}", function, make, ("input",))

    for layout, dtype, channels in (*MAPS, ("NCHW", torch.float32, 3), ("NCHW", torch.float16, 3)):
        make = partial(_rotated_align_inputs, layout=layout, dtype=dtype, channels=channels)
        for points in (1, 5):
            kind = f"{points}, {channels}, {layout}, {str(dtype).removeprefix('torch.')}"
            function = partial(detops.rotated_feature_align, spatial_scale=SCALE, points=points)
            yield Call(f"rotated_feature_align, {kind}", function, make, ("features",))

    for dtype in (torch.float32, torch.float16):
        for kind, max_index in (("permuted", None), ("anywhere", 72)):
            make = partial(_rotated_filter_inputs, dtype=dtype, max_index=max_index)
            name = f"active_rotated_filter, {kind}, {str(dtype).removeprefix('torch.')}"
            yield Call(name, detops.active_rotated_filter, make, ("input",))

    def grouped_carafe_inputs(generator):
        x = torch.randn(2, 8, 6, 7, generator=generator)
        return {"features": x, "masks": torch.rand(2, 36, 18, 21, generator=generator)}

    function = partial(detops.carafe, kernel_size=3, group_size=4, scale_factor=3)
    yield Call("carafe, 4 groups", function, grouped_carafe_inputs, ("features", "masks"))


CALLS = [*_poolings(), *_convolutions(), *_attentions(), *_map_ops()]
