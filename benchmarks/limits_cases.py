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


def _overlaps(name: str, columns: int = 4, gradients: bool = False) -> Maker:
    def make(n: int) -> Call:
        boxes = nested(n, columns)
        return partial(getattr(detops, name), boxes.requires_grad_(gradients), boxes.detach())

    return make


def _mask_nms(n: int) -> Call:
    return partial(detops.mask_nms, masks(n), uniform(n, seed=1), ALMOST_ONE)


def _mask_iou(n: int) -> Call:
    random_masks = masks(n)
    return lambda: detops.mask_iou(random_masks, random_masks)


def _weighted_box_fusion(n: int) -> Call:
    lists = [nested(n)], [uniform(n, seed=1)], [torch.zeros(n, dtype=torch.int64)]
    return partial(detops.weighted_box_fusion, *lists, iou_threshold=ALMOST_ONE)


def _linear_assignment(n: int) -> Call:
    # With products of two ramps, all objects compete for the same columns, and augmenting paths are
    # long.
    ramp = torch.arange(1.0, n + 1)
    return partial(detops.linear_assignment, (ramp[:, None] * ramp)[None])


def _convex_iou(n: int) -> Call:
    return partial(detops.convex_iou, points(n, 18)[0], nested(n, 8) / 1000)


def _points_in_polygons(n: int) -> Call:
    return partial(detops.points_in_polygons, points(n)[0], nested(n, 8))


def _chamfer_distance(n: int) -> Call:
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
    "weighted_box_fusion": _weighted_box_fusion,
    "mask_nms": _mask_nms,
    "mask_iou": _mask_iou,
    "box_iou": _overlaps("box_iou", gradients=True),
    "generalized_box_iou": _overlaps("generalized_box_iou", gradients=True),
    "distance_box_iou": _overlaps("distance_box_iou", gradients=True),
    "complete_box_iou": _overlaps("complete_box_iou", gradients=True),
    "match_boxes": _overlaps("match_boxes"),
    "box_iou_rotated": _overlaps("box_iou_rotated", 5),
    "box_iou_quadri": _overlaps("box_iou_quadri", 8),
    "convex_iou": _convex_iou,
    "points_in_polygons": _points_in_polygons,
    "chamfer_distance": _chamfer_distance,
    "linear_assignment": _linear_assignment,
}

# Meaning of n where it is not boxes.
PAIR_UNITS = {
    "mask_nms": "masks of 28 x 28",
    "mask_iou": "masks of 28 x 28",
    "convex_iou": "sets of 9 points",
    "points_in_polygons": "points",
    "chamfer_distance": "points",
    "linear_assignment": "rows",
}


def _with_gradients(*tensors: Tensor) -> list[Tensor]:
    """Makes all of them require gradients."""
    return [t.requires_grad_() for t in tensors]


def _map(channels: int = CHANNELS, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    return uniform(1, channels, height, width).requires_grad_()


def _full_rois(n: int, columns: int = 5) -> Tensor:
    """Returns RoIs that cover the feature map: by corners, or by centre, sides and angle."""
    if columns == 5:
        return torch.tensor([[0.0, 0, 0, WIDTH, HEIGHT]]).repeat(n, 1)
    rois = torch.tensor([[0.0, WIDTH / 2, HEIGHT / 2, WIDTH, HEIGHT, 0]]).repeat(n, 1)
    rois[:, 5] = torch.arange(n) % 90
    return rois


def _roi_op(name: str, columns: int = 5, channels: int = CHANNELS, **options: Any) -> Maker:
    def make(n: int) -> Call:
        return partial(
            getattr(detops, name), _map(channels), _full_rois(n, columns), output_size=7, **options
        )

    return make


def _multiscale_roi_align(n: int) -> Call:
    maps = [_map(), _map(CHANNELS, HEIGHT // 2, WIDTH // 2)]
    return partial(
        detops.multiscale_roi_align, maps, _full_rois(n), 7, (1.0, 0.5), canonical_scale=1.0
    )


def _deform_roi_pool(n: int) -> Call:
    offset = (uniform(n, 2, 7, 7) - 0.5).requires_grad_()
    return partial(detops.deform_roi_pool, _map(), _full_rois(n), offset, 7)


def _deform_psroi_pooling(n: int) -> Call:
    offset = (uniform(n, 2, 7, 7) - 0.5).requires_grad_()
    options = {"spatial_scale": 1.0, "output_channels": CHANNELS, "trans_std": 0.1}
    return partial(detops.deform_psroi_pooling, _map(), _full_rois(n), offset, 7, **options)


def _border_align(n: int) -> Call:
    return partial(detops.border_align, _map(), _full_rois(HEIGHT * WIDTH)[None, :, 1:], n)


def _feature_map_op(name: str, *more: Any) -> Maker:
    """Returns a maker for ops on feature maps of n pixels."""

    def make(n: int) -> Call:
        return partial(getattr(detops, name), _map(CHANNELS, 1, n), *more)

    return make


def _kernel(*sizes: int) -> Tensor:
    return (uniform(*sizes) - 0.5).requires_grad_()


def _deform_conv2d(n: int) -> Call:
    offset = (1000 * uniform(1, 18, n, WIDTH)).requires_grad_()
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.deform_conv2d, _map(CHANNELS, n, WIDTH), offset, weight, padding=1)


def _winograd_conv2d(n: int) -> Call:
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.winograd_conv2d, _map(CHANNELS, n, WIDTH), weight)


def _packed_conv2d(n: int) -> Call:
    weight = torch.ops.detops.pack_winograd_weight(_kernel(CHANNELS, CHANNELS, 3, 3).detach())
    x = _map(CHANNELS, n, WIDTH).detach()
    sizes = dict(outputs=CHANNELS, kernel_size=(3, 3), padding=(1, 1))
    return partial(torch.ops.detops.packed_conv2d, x, weight, None, None, **sizes)


def _batch_transpose(n: int) -> Call:
    return partial(torch.ops.detops.batch_transpose, uniform(1, CHANNELS, n * WIDTH))


def _pack_weight(name: str) -> Maker:
    def make(n: int) -> Call:
        return partial(getattr(torch.ops.detops, name), uniform(n, CHANNELS, 3, 3))

    return make


def _masked_conv2d(n: int) -> Call:
    mask = torch.ones(1, n, WIDTH, dtype=torch.bool)
    weight = _kernel(CHANNELS, CHANNELS, 3, 3)
    return partial(detops.masked_conv2d, _map(CHANNELS, n, WIDTH).detach(), mask, weight, padding=1)


def _carafe(n: int) -> Call:
    weights = uniform(1, 25, 2 * n, 2 * WIDTH).requires_grad_()
    return partial(detops.carafe, _map(CHANNELS, n, WIDTH), weights, 5, 1, 2)


def _rotated_feature_align(n: int) -> Call:
    boxes = _full_rois(n * WIDTH, 6)[None, :, 1:].view(1, n, WIDTH, 5)
    return partial(detops.rotated_feature_align, _map(CHANNELS, n, WIDTH), boxes, 1.0, 5)


def _active_rotated_filter(n: int) -> Call:
    indices = torch.randint(1, 73, (8, 3, 3, 8), generator=torch.Generator().manual_seed(0))
    return partial(detops.active_rotated_filter, _kernel(n, 16, 8, 3, 3), indices)


def _ms_deform_attn(n: int) -> Call:
    shapes = torch.tensor([[HEIGHT, WIDTH]])
    value = uniform(1, HEIGHT * WIDTH, 8, 32)
    locations, weights = uniform(1, n, 8, 1, 4, 2), uniform(1, n, 8, 1, 4)
    return partial(
        detops.ms_deform_attn,
        *(_with_gradients(value)[0], shapes, torch.tensor([0])),
        *_with_gradients(locations, weights),
    )


def _point_sample(n: int) -> Call:
    return partial(detops.point_sample, _map(), uniform(1, n, 2).requires_grad_())


def _heatmaps_to_keypoints(n: int) -> Call:
    boxes = torch.tensor([[0.0, 0, 600, 600]]).repeat(n, 1)
    return partial(detops.heatmaps_to_keypoints, uniform(n, 17, 56, 56), boxes)


def _paste_masks(n: int) -> Call:
    boxes = torch.tensor([[0.0, 0, 1333, 800]]).repeat(n, 1)
    return partial(detops.paste_masks_in_image, uniform(n, 28, 28), boxes, (800, 1333))


def _masks_to_boxes(n: int) -> Call:
    # masks_to_boxes must read every pixel of an empty mask.
    return partial(detops.masks_to_boxes, torch.zeros(n, 800, 1333, dtype=torch.bool))


def _masks_to_rle(n: int) -> Call:
    return partial(detops.masks_to_rle, uniform(n, 800, 1333) > 0.5)


def _aligned_pairs(name: str, columns: int = 4, **options: Any) -> Maker:
    """Returns a maker for matched pairs from two lists of n boxes."""

    def make(n: int) -> Call:
        boxes = nested(n, columns).requires_grad_()
        return partial(getattr(detops, name), boxes, boxes.detach() + 1, **options)

    return make


def _box_op(name: str, *more: Any) -> Maker:
    def make(n: int) -> Call:
        return partial(getattr(detops, name), nested(n), *more)

    return make


def _aligned_box_iou_quadri(n: int) -> Call:
    return partial(detops.box_iou_quadri, nested(n, 8), nested(n, 8) + 1, aligned=True)


def _convex_giou(n: int) -> Call:
    return partial(detops.convex_giou, _kernel(n, 18), nested(n, 8) / 1000)


def _min_area_polygons(n: int) -> Call:
    return partial(detops.min_area_polygons, uniform(n, 18))


def _sigmoid_focal_loss(n: int) -> Call:
    return partial(detops.sigmoid_focal_loss, _kernel(n), (uniform(n) > 0.9).float())


def _softmax_focal_loss(n: int) -> Call:
    labels = torch.randint(0, 80, (n,), generator=torch.Generator().manual_seed(0))
    return partial(detops.softmax_focal_loss, _kernel(n, 80), labels)


def _axpy(n: int) -> Call:
    return partial(detops.axpy, _kernel(n), _kernel(n))


def _gdh(n: int) -> Call:
    return partial(detops.gdh, _kernel(n))


def _mlp(n: int) -> Call:
    layers = [_kernel(30, 10), _kernel(1, 30), _kernel(1, 30), _kernel(1, 1)]
    return partial(detops.mlp, _kernel(n, 10), *layers)


def _lltm(name: str) -> Maker:
    def make(n: int) -> Call:
        steps = () if name == "lltm_cell" else (10,)
        state, cell = _kernel(n, 128), _kernel(n, 128)
        weights = [_kernel(384, 160), _kernel(384)]
        return partial(getattr(detops, name), _kernel(*steps, n, 32), *weights, state, cell)

    return make


_FULL_ROIS = f"RoIs that cover a map of {CHANNELS} x {HEIGHT} x {WIDTH}"
_ROWS = f"rows of {WIDTH} pixels of {CHANNELS} channels"
_FILTERS = f"filters of {CHANNELS} x 3 x 3"
_IMAGE_MASKS = "masks of 800 x 1333"
_PAIRS = "pairs"
_ELEMENTS = "elements"

# Cost grows with n. Values are the meaning of n, and the call.
LINEAR: dict[str, tuple[str, Maker]] = {
    "roi_align": (_FULL_ROIS, _roi_op("roi_align")),
    "multiscale_roi_align": (_FULL_ROIS, _multiscale_roi_align),
    "roi_align_rotated": (_FULL_ROIS, _roi_op("roi_align_rotated", 6)),
    "riroi_align_rotated": (_FULL_ROIS, _roi_op("riroi_align_rotated", 6)),
    "roi_align_max": (_FULL_ROIS, _roi_op("roi_align_max")),
    "prroi_pool": (_FULL_ROIS, _roi_op("prroi_pool")),
    "roi_pool": (_FULL_ROIS, _roi_op("roi_pool")),
    "ps_roi_align": (_FULL_ROIS, _roi_op("ps_roi_align", channels=245)),
    "ps_roi_pool": (_FULL_ROIS, _roi_op("ps_roi_pool", channels=245)),
    "deform_roi_pool": (_FULL_ROIS, _deform_roi_pool),
    "deform_psroi_pooling": (_FULL_ROIS, _deform_psroi_pooling),
    "border_align": (f"samples per side of {HEIGHT * WIDTH:,} boxes", _border_align),
    "deform_conv2d": (_ROWS, _deform_conv2d),
    "winograd_conv2d": (_ROWS, _winograd_conv2d),
    "packed_conv2d": (_ROWS, _packed_conv2d),
    "batch_transpose": (_ROWS, _batch_transpose),
    "pack_conv2d_weight": (_FILTERS, _pack_weight("pack_conv2d_weight")),
    "pack_winograd_weight": (_FILTERS, _pack_weight("pack_winograd_weight")),
    "masked_conv2d": (_ROWS, _masked_conv2d),
    "carafe": (_ROWS, _carafe),
    "rotated_feature_align": (_ROWS, _rotated_feature_align),
    "corner_pool": (f"pixels of {CHANNELS} channels", _feature_map_op("corner_pool", "left")),
    "active_rotated_filter": ("filters of 16 x 8 x 3 x 3", _active_rotated_filter),
    "ms_deform_attn": ("queries of 8 heads", _ms_deform_attn),
    "point_sample": (f"points of {CHANNELS} channels", _point_sample),
    "heatmaps_to_keypoints": ("boxes of 600 x 600, 17 maps each", _heatmaps_to_keypoints),
    "paste_masks_in_image": (_IMAGE_MASKS, _paste_masks),
    "masks_to_boxes": (_IMAGE_MASKS, _masks_to_boxes),
    "masks_to_rle": (_IMAGE_MASKS, _masks_to_rle),
    "generalized_box_iou_loss": (_PAIRS, _aligned_pairs("generalized_box_iou_loss")),
    "complete_box_iou_loss": (_PAIRS, _aligned_pairs("complete_box_iou_loss")),
    "distance_box_iou_loss": (_PAIRS, _aligned_pairs("distance_box_iou_loss")),
    "rotated_iou": (_PAIRS, _aligned_pairs("rotated_iou", 5)),
    "rotated_iou_loss": (_PAIRS, _aligned_pairs("rotated_iou_loss", 5)),
    "box_iou_quadri, aligned": (_PAIRS, _aligned_box_iou_quadri),
    "convex_giou": (_PAIRS, _convex_giou),
    "encode_boxes": (_PAIRS, _aligned_pairs("encode_boxes")),
    "decode_boxes": (_PAIRS, _aligned_pairs("decode_boxes")),
    "min_area_polygons": ("sets of 9 points", _min_area_polygons),
    "box_area": ("boxes", _box_op("box_area")),
    "box_convert": ("boxes", _box_op("box_convert", "xyxy", "cxcywh")),
    "clip_boxes_to_image": ("boxes", _box_op("clip_boxes_to_image", (100, 100))),
    "remove_small_boxes": ("boxes", _box_op("remove_small_boxes", 10.0)),
    "sigmoid_focal_loss": (_ELEMENTS, _sigmoid_focal_loss),
    "softmax_focal_loss": ("rows of 80 classes", _softmax_focal_loss),
    "axpy": (_ELEMENTS, _axpy),
    "gdh": (_ELEMENTS, _gdh),
    "mlp": ("rows of 10 inputs, 30 hidden units", _mlp),
    "lltm_cell": ("rows of 32 inputs, 128 units", _lltm("lltm_cell")),
    "lltm": ("rows of ten steps, 32 inputs, 128 units", _lltm("lltm")),
}
