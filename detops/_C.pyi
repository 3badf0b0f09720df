"""The compiled module. Every op is the object ``torch.ops.detops.<name>``.

Made by ``make stub`` from csrc/contract/*.contract.
"""

from collections.abc import Sequence

from torch import Tensor

contracts: str
cuda_version: int | None
emulated: bool

def cpu_isa() -> str: ...
def set_cpu_isa(name: str) -> None: ...
def use_arena(on: bool) -> bool: ...
def arena_size() -> tuple[int, int]: ...
def release_arena() -> None: ...
def limit_grain(most: int) -> None: ...
def shared_loops() -> int: ...
def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor: ...
def batched_nms(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor: ...
def nms_rotated(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor: ...
def batched_nms_rotated(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor: ...
def nms_padded(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor | None,
    iou_threshold: float,
    max_output: int,
) -> tuple[Tensor, Tensor]: ...
def nms_match(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
) -> Tensor: ...
def soft_nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float = 0.3,
    sigma: float = 0.5,
    min_score: float = 1e-3,
    method: str = "linear",
    max_output: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def weighted_box_fusion(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    models: Tensor,
    weights: Sequence[float],
    iou_threshold: float = 0.55,
    skip_box_threshold: float = 0.0,
    conf_type: str = "avg",
    allows_overflow: bool = False,
) -> tuple[Tensor, Tensor, Tensor]: ...
def matrix_nms(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor | None = None,
    sigma: float = 2.0,
    min_score: float = 1e-3,
    method: str = "gaussian",
) -> tuple[Tensor, Tensor]: ...
def roi_align(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor: ...
def roi_align_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor: ...
def roi_align_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool = False,
) -> Tensor: ...
def multiscale_roi_align(
    inputs: Sequence[Tensor],
    boxes: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
    canonical_scale: float = 224.0,
    canonical_level: int = 4,
) -> Tensor: ...
def multiscale_roi_align_forward(
    inputs: Sequence[Tensor],
    boxes: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
    canonical_scale: float,
    canonical_level: int,
) -> Tensor: ...
def multiscale_roi_align_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    heights: Sequence[int],
    widths: Sequence[int],
    sampling_ratio: int,
    aligned: bool,
    canonical_scale: float,
    canonical_level: int,
) -> list[Tensor]: ...
def roi_align_rotated(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
) -> Tensor: ...
def roi_align_rotated_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> Tensor: ...
def roi_align_rotated_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
) -> Tensor: ...
def riroi_align_rotated(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
    num_orientations: int = 8,
    clockwise: bool = False,
) -> Tensor: ...
def riroi_align_rotated_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    num_orientations: int,
    clockwise: bool,
) -> Tensor: ...
def riroi_align_rotated_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    num_orientations: int,
    clockwise: bool,
) -> Tensor: ...
def roi_align_max(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor: ...
def roi_align_max_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> tuple[Tensor, Tensor, Tensor]: ...
def roi_align_max_backward(
    grad: Tensor,
    boxes: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor: ...
def prroi_pool(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Tensor: ...
def prroi_pool_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Tensor: ...
def prroi_pool_backward(
    grad: Tensor,
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    input_wanted: bool = True,
    boxes_wanted: bool = True,
) -> tuple[Tensor, Tensor]: ...
def border_align(
    input: Tensor,
    boxes: Tensor,
    pool_size: int,
) -> Tensor: ...
def border_align_forward(
    input: Tensor,
    boxes: Tensor,
    pool_size: int,
) -> tuple[Tensor, Tensor]: ...
def border_align_backward(
    grad: Tensor,
    boxes: Tensor,
    argmax: Tensor,
    pool_size: int,
    height: int,
    width: int,
) -> Tensor: ...
def roi_pool(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Tensor: ...
def roi_pool_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Tensor, Tensor]: ...
def roi_pool_backward(
    grad: Tensor,
    input: Tensor,
    boxes: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor: ...
def ps_roi_align(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = -1,
) -> Tensor: ...
def ps_roi_align_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> Tensor: ...
def ps_roi_pool(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Tensor: ...
def ps_roi_pool_forward(
    input: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Tensor: ...
def ps_roi_align_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
) -> Tensor: ...
def ps_roi_pool_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor: ...
def deform_psroi_pool(
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    output_channels: int,
    group_size: int,
    pooled_height: int,
    pooled_width: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Tensor, Tensor]: ...
def deform_psroi_pool_forward(
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    output_channels: int,
    group_size: int,
    pooled_height: int,
    pooled_width: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Tensor, Tensor]: ...
def deform_psroi_pool_backward(
    grad: Tensor,
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    count: Tensor,
    spatial_scale: float,
    group_size: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Tensor, Tensor]: ...
def deform_psroi_pooling(
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    output_channels: int,
    group_size: int,
    pooled_height: int,
    pooled_width: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> Tensor: ...
def deform_roi_pool(
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int = 0,
    gamma: float = 0.1,
) -> Tensor: ...
def deform_roi_pool_forward(
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    gamma: float,
) -> Tensor: ...
def deform_roi_pool_backward(
    grad: Tensor,
    input: Tensor,
    boxes: Tensor,
    offset: Tensor | None,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
    input_wanted: bool = True,
) -> tuple[Tensor, Tensor]: ...
def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor: ...
def deform_conv2d_forward(
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
) -> Tensor: ...
def deform_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    wanted: Sequence[bool],
    edge_gradient: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor: ...
def ms_deform_attn_forward(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor: ...
def ms_deform_attn_backward(
    grad: Tensor,
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor]: ...
def box_iou_matrix(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_forward(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_backward(
    grad: Tensor,
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> tuple[Tensor, Tensor]: ...
def box_iou_aligned(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_aligned_forward(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_aligned_backward(
    grad: Tensor,
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "iou",
    eps: float = 1e-7,
) -> tuple[Tensor, Tensor]: ...
def match_boxes(
    boxes1: Tensor,
    boxes2: Tensor,
) -> tuple[Tensor, Tensor]: ...
def linear_assignment(
    cost: Tensor,
    num_objects: Tensor | None = None,
) -> Tensor: ...
def box_iou_rotated(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
) -> Tensor: ...
def rotated_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
) -> Tensor: ...
def rotated_iou_forward(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str,
) -> Tensor: ...
def rotated_iou_backward(
    grad: Tensor,
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str,
) -> tuple[Tensor, Tensor]: ...
def box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "giou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_loss_forward(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "giou",
    eps: float = 1e-7,
) -> Tensor: ...
def box_iou_loss_backward(
    grad: Tensor,
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str = "giou",
    eps: float = 1e-7,
) -> tuple[Tensor, Tensor]: ...
def encode_boxes(
    boxes: Tensor,
    anchors: Tensor,
    weights: Sequence[float] = [1.0, 1.0, 1.0, 1.0],
) -> Tensor: ...
def encode_boxes_forward(
    boxes: Tensor,
    anchors: Tensor,
    weights: Sequence[float],
) -> Tensor: ...
def encode_boxes_backward(
    grad: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    weights: Sequence[float],
) -> tuple[Tensor, Tensor]: ...
def decode_boxes(
    deltas: Tensor,
    anchors: Tensor,
    weights: Sequence[float] = [1.0, 1.0, 1.0, 1.0],
    clip: float = 4.135166556742356,
) -> Tensor: ...
def decode_boxes_forward(
    deltas: Tensor,
    anchors: Tensor,
    weights: Sequence[float],
    clip: float,
) -> Tensor: ...
def decode_boxes_backward(
    grad: Tensor,
    deltas: Tensor,
    anchors: Tensor,
    weights: Sequence[float],
    clip: float,
) -> tuple[Tensor, Tensor]: ...
def sigmoid_focal_loss_elements(
    inputs: Tensor,
    targets: Tensor,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def sigmoid_focal_loss_forward(
    inputs: Tensor,
    targets: Tensor,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def sigmoid_focal_loss_sum(
    inputs: Tensor,
    targets: Tensor,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def sigmoid_focal_loss_backward(
    grad: Tensor,
    inputs: Tensor,
    targets: Tensor,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def softmax_focal_loss_elements(
    inputs: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def softmax_focal_loss_forward(
    inputs: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def softmax_focal_loss_backward(
    grad: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    alpha: float,
    gamma: float,
) -> Tensor: ...
def chamfer_distance(
    points1: Tensor,
    points2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def chamfer_distance_forward(
    points1: Tensor,
    points2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def chamfer_distance_backward(
    grad1: Tensor,
    grad2: Tensor,
    points1: Tensor,
    points2: Tensor,
    idx1: Tensor,
    idx2: Tensor,
) -> tuple[Tensor, Tensor]: ...
def box_area(
    boxes: Tensor,
    fmt: str = "xyxy",
) -> Tensor: ...
def box_convert(
    boxes: Tensor,
    in_fmt: str,
    out_fmt: str,
) -> Tensor: ...
def clip_boxes_to_image(
    boxes: Tensor,
    height: int,
    width: int,
) -> Tensor: ...
def remove_small_boxes(
    boxes: Tensor,
    min_size: float,
) -> Tensor: ...
def box_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    fmt: str = "xyxy",
    mode: str = "iou",
    aligned: bool = False,
) -> Tensor: ...
def generalized_box_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    aligned: bool = False,
) -> Tensor: ...
def distance_box_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    eps: float = 1e-7,
    aligned: bool = False,
) -> Tensor: ...
def complete_box_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    eps: float = 1e-7,
    aligned: bool = False,
) -> Tensor: ...
def generalized_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-7,
) -> Tensor: ...
def distance_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-7,
) -> Tensor: ...
def complete_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-7,
) -> Tensor: ...
def rotated_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
    reduction: str = "none",
    eps: float = 1e-7,
) -> Tensor: ...
def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
) -> Tensor: ...
def softmax_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2.0,
    weight: Tensor | None = None,
    reduction: str = "none",
) -> Tensor: ...
def masks_to_boxes(
    masks: Tensor,
) -> Tensor: ...
def mask_iou(
    masks1: Tensor,
    masks2: Tensor,
    mode: str = "iou",
) -> Tensor: ...
def mask_nms(
    masks: Tensor,
    scores: Tensor,
    iou_threshold: float,
) -> Tensor: ...
def masks_to_rle(
    masks: Tensor,
) -> tuple[Tensor, Tensor]: ...
def paste_masks_in_image(
    masks: Tensor,
    boxes: Tensor,
    height: int,
    width: int,
    threshold: float = 0.5,
) -> Tensor: ...
def point_sample(
    input: Tensor,
    points: Tensor,
) -> Tensor: ...
def point_sample_forward(
    input: Tensor,
    points: Tensor,
) -> Tensor: ...
def point_sample_backward(
    grad: Tensor,
    input: Tensor,
    points: Tensor,
    input_wanted: bool = True,
    points_wanted: bool = True,
) -> tuple[Tensor, Tensor]: ...
def carafe(
    features: Tensor,
    masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> Tensor: ...
def carafe_forward(
    features: Tensor,
    masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> Tensor: ...
def carafe_backward(
    grad: Tensor,
    features: Tensor,
    masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
    features_wanted: bool = True,
    masks_wanted: bool = True,
) -> tuple[Tensor, Tensor]: ...
def corner_pool(
    input: Tensor,
    mode: str,
) -> Tensor: ...
def corner_pool_forward(
    input: Tensor,
    mode: str,
) -> Tensor: ...
def corner_pool_backward(
    grad: Tensor,
    input: Tensor,
    output: Tensor,
    mode: str,
) -> Tensor: ...
def heatmaps_to_keypoints(
    maps: Tensor,
    boxes: Tensor,
) -> tuple[Tensor, Tensor]: ...
def rotated_feature_align(
    features: Tensor,
    boxes: Tensor,
    spatial_scale: float = 0.125,
    points: int = 1,
) -> Tensor: ...
def rotated_feature_align_forward(
    features: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    points: int,
) -> Tensor: ...
def rotated_feature_align_backward(
    grad: Tensor,
    boxes: Tensor,
    spatial_scale: float,
    points: int,
) -> Tensor: ...
def active_rotated_filter(
    input: Tensor,
    indices: Tensor,
) -> Tensor: ...
def active_rotated_filter_forward(
    input: Tensor,
    indices: Tensor,
) -> Tensor: ...
def active_rotated_filter_backward(
    grad: Tensor,
    indices: Tensor,
    outputs: int,
    inputs: int,
) -> Tensor: ...
def masked_conv2d(
    features: Tensor,
    mask: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
) -> Tensor: ...
def masked_conv2d_forward(
    features: Tensor,
    mask: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor: ...
def winograd_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: Sequence[int] = (1, 1),
) -> Tensor: ...
def winograd_conv2d_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sequence[int],
) -> Tensor: ...
def winograd_conv2d_backward_weight(
    grad: Tensor,
    input: Tensor,
    padding: Sequence[int],
) -> Tensor: ...
def batch_transpose(
    input: Tensor,
) -> Tensor: ...
def pack_conv2d_weight(
    weight: Tensor,
) -> Tensor: ...
def pack_winograd_weight(
    weight: Tensor,
) -> Tensor: ...
def packed_conv2d(
    input: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    add: Tensor | None,
    outputs: int,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    relu: bool = False,
) -> Tensor: ...
def convex_iou(
    pointsets: Tensor,
    polygons: Tensor,
) -> Tensor: ...
def convex_giou(
    pointsets: Tensor,
    polygons: Tensor,
) -> Tensor: ...
def convex_giou_forward(
    pointsets: Tensor,
    polygons: Tensor,
) -> Tensor: ...
def convex_giou_backward(
    grad: Tensor,
    pointsets: Tensor,
    polygons: Tensor,
) -> Tensor: ...
def min_area_polygons(
    pointsets: Tensor,
) -> Tensor: ...
def points_in_polygons(
    points: Tensor,
    polygons: Tensor,
) -> Tensor: ...
def box_iou_quadri(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
) -> Tensor: ...
def box_iou_quadri_pairs(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
) -> Tensor: ...
def nms_quadri(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
) -> Tensor: ...
def axpy(
    x: Tensor,
    y: Tensor,
    alpha: float = 2.0,
) -> Tensor: ...
def axpy_forward(
    x: Tensor,
    y: Tensor,
    alpha: float = 2.0,
) -> Tensor: ...
def axpy_backward(
    grad: Tensor,
    alpha: float = 2.0,
) -> tuple[Tensor, Tensor]: ...
def gdh_forward(
    x: Tensor,
) -> Tensor: ...
def mlp(
    input: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor,
    output_weights: Tensor,
    output_bias: Tensor,
) -> Tensor: ...
def mlp_forward(
    input: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor,
    output_weights: Tensor,
    output_bias: Tensor,
) -> tuple[Tensor, Tensor]: ...
def mlp_backward(
    grad: Tensor,
    input: Tensor,
    hidden: Tensor,
    hidden_weights: Tensor,
    output_weights: Tensor,
    input_wanted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def lltm_forward(
    input: Tensor,
    weights: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]: ...
def lltm_backward(
    grad_output: Tensor,
    grad_h: Tensor | None,
    grad_c: Tensor,
    input: Tensor,
    weights: Tensor,
    h: Tensor,
    c: Tensor,
    output: Tensor,
    cells: Tensor,
    gates: Tensor,
    input_wanted: bool = True,
    h_wanted: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def lltm_cell(
    input: Tensor,
    weights: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor]: ...
def lltm(
    input: Tensor,
    weights: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]: ...
def gdh(
    x: Tensor,
) -> Tensor: ...
def deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> int: ...
def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradInput: Tensor,
    gradOffset: Tensor,
    weight: Tensor,
    columns: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    im2col_step: int,
) -> int: ...
def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    gradOutput: Tensor,
    gradWeight: Tensor,
    columns: Tensor,
    ones: Tensor,
    kW: int,
    kH: int,
    dW: int,
    dH: int,
    padW: int,
    padH: int,
    dilationW: int,
    dilationH: int,
    group: int,
    deformable_group: int,
    scale: float,
    im2col_step: int,
) -> int: ...
def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None: ...
def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    kernel_h: int,
    kernel_w: int,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    group: int,
    deformable_group: int,
    with_bias: bool,
) -> None: ...
def deform_psroi_pooling_forward(
    input: Tensor,
    bbox: Tensor,
    trans: Tensor,
    out: Tensor,
    top_count: Tensor,
    no_trans: int,
    spatial_scale: float,
    output_dim: int,
    group_size: int,
    pooled_size: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> None: ...
def deform_psroi_pooling_backward(
    out_grad: Tensor,
    input: Tensor,
    bbox: Tensor,
    trans: Tensor,
    top_count: Tensor,
    input_grad: Tensor,
    trans_grad: Tensor,
    no_trans: int,
    spatial_scale: float,
    output_dim: int,
    group_size: int,
    pooled_size: int,
    part_size: int,
    sample_per_part: int,
    trans_std: float,
) -> None: ...
def sigmoid_focalloss_forward(
    logits: Tensor,
    targets: Tensor,
    num_classes: int,
    gamma: float,
    alpha: float,
) -> Tensor: ...
def sigmoid_focalloss_backward(
    logits: Tensor,
    targets: Tensor,
    d_losses: Tensor,
    num_classes: int,
    gamma: float,
    alpha: float,
) -> Tensor: ...
