"""Worst-case calls of every op at size `n`, for limits.py."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import detops

ALMOST_ONE = 0.9999  # keeps every box, so each is compared with all others
CHANNELS, HEIGHT, WIDTH = 256, 100, 168  # of a feature map

Call = Callable[[], Any]
Maker = Callable[[int], Call]


def uniform(*sizes: int, seed: int = 0) -> Tensor:
    """Returns uniform random numbers in [0, 1)."""
    return torch.rand(*sizes, generator=torch.Generator().manual_seed(seed))


def nested(n: int, columns: int = 4) -> Tensor:
    """Returns concentric boxes of all sizes, which no grid can separate."""
    generator = torch.Generator().manual_seed(0)
    half = 1 + 500 * torch.rand(n, 2, generator=generator)
    if columns == 4:
        return torch.cat([-half, half], 1)
    if columns == 5:
        angles = 90 * torch.rand(n, 1, generator=generator)
        return torch.cat([torch.zeros(n, 2), 2 * half, angles], 1)
    return (half[:, None] * torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])).flatten(1)


def masks(n: int) -> Tensor:
    """Returns random masks of 28 x 28 pixels."""
    return uniform(n, 28, 28) > 0.5


def points(n: int, columns: int = 2) -> Tensor:
    """Returns random points in the unit square."""
    return uniform(1, n, columns, seed=n)


def _suppress(name: str, columns: int = 4, **options: Any) -> Maker:
    def make(n: int) -> Call:
        arguments = [nested(n, columns), uniform(n, seed=1)]
        if name.startswith(("batched", "matrix")):
            arguments.append(torch.zeros(n, dtype=torch.int64))
        return lambda: getattr(detops, name)(*arguments, **options)

    return make


def _pairs(name: str, columns: int = 4, wanted: bool = False) -> Maker:
    def make(n: int) -> Call:
        boxes = nested(n, columns)
        return partial(getattr(detops, name), boxes.requires_grad_(wanted), boxes.detach())

    return make


def _of_masks(n: int) -> Call:
    return partial(detops.mask_nms, masks(n), uniform(n, seed=1), ALMOST_ONE)


def _mask_overlaps(n: int) -> Call:
    of_n = masks(n)
    return lambda: detops.mask_iou(of_n, of_n)


def _fused(n: int) -> Call:
    lists = [nested(n)], [uniform(n, seed=1)], [torch.zeros(n, dtype=torch.int64)]
    return partial(detops.weighted_box_fusion, *lists, iou_threshold=ALMOST_ONE)


def _matched(n: int) -> Call:
    # With products of two ramps, all objects compete for the same columns, and augmenting paths are
    # long.
    ramp = torch.arange(1.0, n + 1)
    return partial(detops.linear_assignment, (ramp[:, None] * ramp)[None])


def _convex(n: int) -> Call:
    return partial(detops.convex_iou, points(n, 18)[0], nested(n, 8) / 1000)


def _inside(n: int) -> Call:
    return partial(detops.points_in_polygons, points(n)[0], nested(n, 8))


def _chamfer(n: int) -> Call:
    return partial(detops.chamfer_distance, points(n).requires_grad_(), points(n + 1)[:, :n])


# Cost grows with the pairs of n boxes, masks or points, except for linear_assignment.
PAIRS: dict[str, Maker] = {
    "nms": _suppress("nms", iou_threshold=ALMOST_ONE),
    "batched_nms": _suppress("batched_nms", iou_threshold=ALMOST_ONE),
    "nms_padded": _suppress("nms_padded", iou_threshold=ALMOST_ONE),
    "nms_match": _suppress("nms_match", iou_threshold=ALMOST_ONE),
    "nms_rotated": _suppress("nms_rotated", 5, iou_threshold=ALMOST_ONE),
    "batched_nms_rotated": _suppress("batched_nms_rotated", 5, iou_threshold=ALMOST_ONE),
    "nms_quadri": _suppress("nms_quadri", 8, iou_threshold=ALMOST_ONE),
    "soft_nms": _suppress("soft_nms", iou_threshold=ALMOST_ONE, method="naive"),
    "matrix_nms": _suppress("matrix_nms"),
    "weighted_box_fusion": _fused,
    "mask_nms": _of_masks,
    "mask_iou": _mask_overlaps,
    "box_iou": _pairs("box_iou", wanted=True),
    "generalized_box_iou": _pairs("generalized_box_iou", wanted=True),
    "distance_box_iou": _pairs("distance_box_iou", wanted=True),
    "complete_box_iou": _pairs("complete_box_iou", wanted=True),
    "match_boxes": _pairs("match_boxes"),
    "box_iou_rotated": _pairs("box_iou_rotated", 5),
    "box_iou_quadri": _pairs("box_iou_quadri", 8),
    "convex_iou": _convex,
    "points_in_polygons": _inside,
    "chamfer_distance": _chamfer,
    "linear_assignment": _matched,
}

# Meaning of n where it is not boxes.
PAIRED = {
    "mask_nms": "masks of 28 x 28",
    "mask_iou": "masks of 28 x 28",
    "convex_iou": "sets of 9 points",
    "points_in_polygons": "points",
    "chamfer_distance": "points",
    "linear_assignment": "rows",
}


def _wanted(*tensors: Tensor) -> list[Tensor]:
    """Makes all of them require gradients."""
    return [t.requires_grad_() for t in tensors]


def _map(channels: int = CHANNELS, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return uniform(1, channels, height, width).requires_grad_()


def _whole(n: int, columns: int = 5) -> Tensor:
    """Returns RoIs that cover the feature map: by corners, or by centre, sides and angle."""
    if columns == 5:
        return torch.tensor([[0.0, 0, 0, WIDTH, HEIGHT]]).repeat(n, 1)
    rois = torch.tensor([[0.0, WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT, 0]]).repeat(n, 1)
    rois[:, 5] = torch.arange(n) % 90
    return rois


def _rois(name: str, columns: int = 5, channels: int = CHANNELS, **options: Any) -> Maker:
    def make(n: int) -> Call:
        return partial(
            getattr(detops, name), _map(channels), _whole(n, columns), output_size=7, **options
        )

    return make


def _levels(n: int) -> Call:
    maps = [_map(), _map(CHANNELS, HEIGHT // 2, WIDTH // 2)]
    return partial(detops.multiscale_roi_align, maps, _whole(n), 7, (1.0, 0.5), canonical_scale=1.0)


def _moved(n: int) -> Call:
    offset = (uniform(n, 2, 7, 7) - 0.5).requires_grad_()
    return partial(detops.deform_roi_pool, _map(), _whole(n), offset, 7)


def _shifted(n: int) -> Call:
    offset = (uniform(n, 2, 7, 7) - 0.5).requires_grad_()
    options = {"spatial_scale": 1.0, "output_channels": CHANNELS, "trans_std": 0.1}
    return partial(detops.deform_psroi_pooling, _map(), _whole(n), offset, 7, **options)


def _borders(n: int) -> Call:
    return partial(detops.border_align, _map(), _whole(HEIGHT * WIDTH)[None, :, 1:], n)


def _of_map(name: str, *more: Any) -> Maker:
    """Returns a maker for ops on feature maps of n pixels."""

    def make(n: int) -> Call:
        return partial(getattr(detops, name), _map(CHANNELS, 1, n), *more)

    return make


def _kernel(*sizes: int) -> Tensor:
    return (uniform(*sizes) - 0.5).requires_grad_()


def _deformed(n: int) -> Call:
    far = (1000 * uniform(1, 18, n, WIDTH)).requires_grad_()
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.deform_conv2d, _map(CHANNELS, n, WIDTH), far, weight, padding=1)


def _winograd(n: int) -> Call:
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.winograd_conv2d, _map(CHANNELS, n, WIDTH), weight)


def _packed(n: int) -> Call:
    weight = torch.ops.detops.pack_winograd_weight(_kernel(CHANNELS, CHANNELS, 3, 3).detach())
    x = _map(CHANNELS, n, WIDTH).detach()
    sizes = dict(outputs=CHANNELS, kernel_size=(3, 3), padding=(1, 1))
    return partial(torch.ops.detops.packed_conv2d, x, weight, None, None, **sizes)


def _transposed(n: int) -> Call:
    return partial(torch.ops.detops.batch_transpose, uniform(1, CHANNELS, n * WIDTH))


def _packing(name: str) -> Maker:
    def make(n: int) -> Call:
        return partial(getattr(torch.ops.detops, name), uniform(n, CHANNELS, 3, 3))

    return make


def _masked(n: int) -> Call:
    mask = torch.ones(1, n, WIDTH, dtype=torch.bool)
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.masked_conv2d, _map(CHANNELS, n, WIDTH).detach(), mask, weight, padding=1)


def _reassembled(n: int) -> Call:
    weights = uniform(1, 25, 2 * n, 2 * WIDTH).requires_grad_()
    return partial(detops.carafe, _map(CHANNELS, n, WIDTH), weights, 5, 1, 2)


def _aligned(n: int) -> Call:
    boxes = _whole(n * WIDTH, 6)[None, :, 1:].view(1, n, WIDTH, 5)
    return partial(detops.rotated_feature_align, _map(CHANNELS, n, WIDTH), boxes, 1.0, 5)


def _turned(n: int) -> Call:
    indices = torch.randint(1, 73, (8, 3, 3, 8), generator=torch.Generator().manual_seed(0))
    return partial(detops.active_rotated_filter, _kernel(n, 16, 8, 3, 3), indices)


def _attended(n: int) -> Call:
    shapes = torch.tensor([[HEIGHT, WIDTH]])
    value = uniform(1, HEIGHT * WIDTH, 8, 32)
    places, weights = uniform(1, n, 8, 1, 4, 2), uniform(1, n, 8, 1, 4)
    return partial(
        detops.ms_deform_attn,
        *(_wanted(value)[0], shapes, torch.tensor([0])),
        *_wanted(places, weights),
    )


def _sampled(n: int) -> Call:
    return partial(detops.point_sample, _map(), uniform(1, n, 2).requires_grad_())


def _keypoints(n: int) -> Call:
    boxes = torch.tensor([[0.0, 0, 600, 600]]).repeat(n, 1)
    return partial(detops.heatmaps_to_keypoints, uniform(n, 17, 56, 56), boxes)


def _pasted(n: int) -> Call:
    boxes = torch.tensor([[0.0, 0, 1333, 800]]).repeat(n, 1)
    return partial(detops.paste_masks_in_image, uniform(n, 28, 28), boxes, (800, 1333))


def _empty_masks(n: int) -> Call:
    # masks_to_boxes must read every pixel of an empty mask.
    return partial(detops.masks_to_boxes, torch.zeros(n, 800, 1333, dtype=torch.bool))


def _noisy_masks(n: int) -> Call:
    return partial(detops.masks_to_rle, uniform(n, 800, 1333) > 0.5)


def _listed(name: str, columns: int = 4, **options: Any) -> Maker:
    """Returns a maker for matched pairs from two lists of n boxes."""

    def make(n: int) -> Call:
        boxes = nested(n, columns).requires_grad_()
        return partial(getattr(detops, name), boxes, boxes.detach() + 1, **options)

    return make


def _boxes(name: str, *more: Any) -> Maker:
    def make(n: int) -> Call:
        return partial(getattr(detops, name), nested(n), *more)

    return make


def _quads(n: int) -> Call:
    return partial(detops.box_iou_quadri, nested(n, 8), nested(n, 8) + 1, aligned=True)


def _convex_pairs(n: int) -> Call:
    return partial(detops.convex_giou, _kernel(n, 18), nested(n, 8) / 1000)


def _surrounded(n: int) -> Call:
    return partial(detops.min_area_polygons, uniform(n, 18))


def _focal(n: int) -> Call:
    return partial(detops.sigmoid_focal_loss, _kernel(n), (uniform(n) > 0.9).float())


def _softmax_focal(n: int) -> Call:
    labels = torch.randint(0, 80, (n,), generator=torch.Generator().manual_seed(0))
    return partial(detops.softmax_focal_loss, _kernel(n, 80), labels)


def _added(n: int) -> Call:
    return partial(detops.axpy, _kernel(n), _kernel(n))


def _copied(n: int) -> Call:
    return partial(detops.gdh, _kernel(n))


def _perceived(n: int) -> Call:
    layers = [_kernel(30, 10), _kernel(1, 30), _kernel(1, 30), _kernel(1, 1)]
    return partial(detops.mlp, _kernel(n, 10), *layers)


def _stepped(name: str) -> Maker:
    def make(n: int) -> Call:
        steps = () if name == "lltm_cell" else (10,)
        state, cell = _kernel(n, 128), _kernel(n, 128)
        weights = [_kernel(384, 160), _kernel(384)]
        return partial(getattr(detops, name), _kernel(*steps, n, 32), *weights, state, cell)

    return make


_A_MAP = f"RoIs that cover a map of {CHANNELS} x {HEIGHT} x {WIDTH}"
_ROWS = f"rows of {WIDTH} pixels of {CHANNELS} channels"
_FILTERS = f"filters of {CHANNELS} x 3 x 3"
_LARGE = "masks of 800 x 1333"
_OF_PAIRS = "pairs"
_NUMBERS = "numbers"

# Cost grows with n. Values are the meaning of n, and the call.
LINEAR: dict[str, tuple[str, Maker]] = {
    "roi_align": (_A_MAP, _rois("roi_align")),
    "multiscale_roi_align": (_A_MAP, _levels),
    "roi_align_rotated": (_A_MAP, _rois("roi_align_rotated", 6)),
    "riroi_align_rotated": (_A_MAP, _rois("riroi_align_rotated", 6)),
    "roi_align_max": (_A_MAP, _rois("roi_align_max")),
    "prroi_pool": (_A_MAP, _rois("prroi_pool")),
    "roi_pool": (_A_MAP, _rois("roi_pool")),
    "ps_roi_align": (_A_MAP, _rois("ps_roi_align", channels=245)),
    "ps_roi_pool": (_A_MAP, _rois("ps_roi_pool", channels=245)),
    "deform_roi_pool": (_A_MAP, _moved),
    "deform_psroi_pooling": (_A_MAP, _shifted),
    "border_align": (f"samples a side of {HEIGHT * WIDTH:,} boxes", _borders),
    "deform_conv2d": (_ROWS, _deformed),
    "winograd_conv2d": (_ROWS, _winograd),
    "packed_conv2d": (_ROWS, _packed),
    "batch_transpose": (_ROWS, _transposed),
    "pack_conv2d_weight": (_FILTERS, _packing("pack_conv2d_weight")),
    "pack_winograd_weight": (_FILTERS, _packing("pack_winograd_weight")),
    "masked_conv2d": (_ROWS, _masked),
    "carafe": (_ROWS, _reassembled),
    "rotated_feature_align": (_ROWS, _aligned),
    "corner_pool": (f"pixels of {CHANNELS} channels", _of_map("corner_pool", "left")),
    "active_rotated_filter": ("filters of 16 x 8 x 3 x 3", _turned),
    "ms_deform_attn": ("queries of 8 heads", _attended),
    "point_sample": (f"points of {CHANNELS} channels", _sampled),
    "heatmaps_to_keypoints": ("boxes of 600 x 600, 17 maps each", _keypoints),
    "paste_masks_in_image": (_LARGE, _pasted),
    "masks_to_boxes": (_LARGE, _empty_masks),
    "masks_to_rle": (_LARGE, _noisy_masks),
    "generalized_box_iou_loss": (_OF_PAIRS, _listed("generalized_box_iou_loss")),
    "complete_box_iou_loss": (_OF_PAIRS, _listed("complete_box_iou_loss")),
    "distance_box_iou_loss": (_OF_PAIRS, _listed("distance_box_iou_loss")),
    "rotated_iou": (_OF_PAIRS, _listed("rotated_iou", 5)),
    "rotated_iou_loss": (_OF_PAIRS, _listed("rotated_iou_loss", 5)),
    "box_iou_quadri, aligned": (_OF_PAIRS, _quads),
    "convex_giou": (_OF_PAIRS, _convex_pairs),
    "encode_boxes": (_OF_PAIRS, _listed("encode_boxes")),
    "decode_boxes": (_OF_PAIRS, _listed("decode_boxes")),
    "min_area_polygons": ("sets of 9 points", _surrounded),
    "box_area": ("boxes", _boxes("box_area")),
    "box_convert": ("boxes", _boxes("box_convert", "xyxy", "cxcywh")),
    "clip_boxes_to_image": ("boxes", _boxes("clip_boxes_to_image", (100, 100))),
    "remove_small_boxes": ("boxes", _boxes("remove_small_boxes", 10.0)),
    "sigmoid_focal_loss": (_NUMBERS, _focal),
    "softmax_focal_loss": ("rows of 80 classes", _softmax_focal),
    "axpy": (_NUMBERS, _added),
    "gdh": (_NUMBERS, _copied),
    "mlp": ("rows of 10 inputs, 30 hidden units", _perceived),
    "lltm_cell": ("rows of 32 inputs, 128 units", _stepped("lltm_cell")),
    "lltm": ("rows of ten steps, 32 inputs, 128 units", _stepped("lltm")),
}
