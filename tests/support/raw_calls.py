"""One small valid call of every op in the schema list, by argument name."""

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]

H, W, SCALE = 6, 7, 0.5
CONVOLVED = dict(kW=3, kH=3, dW=1, dH=1, padW=1, padH=1, dilationW=1, dilationH=1, group=1)
MODULATED = dict(
    kernel_h=3,
    kernel_w=3,
    stride_h=1,
    stride_w=1,
    pad_h=1,
    pad_w=1,
    dilation_h=1,
    dilation_w=1,
    group=1,
    deformable_group=1,
    with_bias=True,
)


def schema_ops() -> list[str]:
    """Returns all names in ``torch.ops.detops``."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(n.removeprefix("detops::") for n in names if n.startswith("detops::"))


def arguments(op: str) -> Arguments:
    """Returns new arguments for an op, with the same values every time."""
    return copy.deepcopy(calls()[op])


@cache
def calls() -> dict[str, Arguments]:
    """Returns the arguments of each op; a caller that changes them takes :func:`arguments`."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    low = 8 * random(5, 2)
    boxes = torch.cat([low, low + 1 + 5 * random(5, 2)], 1)
    others = boxes + random(5, 4) / 4
    rotated = torch.cat([low, 1 + 5 * random(5, 2), 90 * random(5, 1)], 1)
    scores, idxs = random(5), torch.tensor([0, 1, 0, 1, 1])
    rois = torch.cat([torch.tensor([[0.0], [1], [0], [1], [1]]), boxes], 1)
    rotated_rois = torch.cat([rois[:, :1], rotated], 1)
    x = random(2, 3, H, W)
    size = dict(pooled_height=2, pooled_width=3)
    map_size = dict(batch_size=2, channels=3, height=H, width=W)
    pooling_args, grad = dict(boxes=rois, spatial_scale=SCALE), random(5, 3, 2, 3)
    forward_args = dict(input=x, **pooling_args, **size)
    backward_args = dict(grad=grad, **pooling_args, **size, **map_size)
    rotated_args = dict(spatial_scale=SCALE, boxes=rotated_rois)
    planes = dict(input=random(2, 12, H, W))
    ps_backward_args = backward_args | dict(grad=random(5, 2, 2, 3), channels=12)
    pyramid = dict(canonical_scale=4.0, canonical_level=4, aligned=True, sampling_ratio=2)
    window = dict(stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    conv = dict(
        input=x,
        offset=random(2, 18, H, W) - 0.5,
        mask=random(2, 9, H, W),
        weight=random(4, 3, 3, 3) - 0.5,
        bias=random(4),
    )
    parts = dict(spatial_scale=SCALE, group_size=2, part_size=2, sample_per_part=2, trans_std=0.1)
    offset_args = dict(input=planes["input"], boxes=rois, offset=random(5, 2, 2, 2) - 0.5)
    shapes = torch.tensor([[3, 4], [2, 2]])
    attention = dict(
        value=random(2, 16, 2, 4),
        spatial_shapes=shapes,
        level_start_index=torch.tensor([0, 12]),
        sampling_locations=random(2, 3, 2, 2, 2, 2),
        attention_weights=random(2, 3, 2, 2, 2),
    )
    pair = dict(boxes1=boxes, boxes2=others)
    rotated_pair = dict(boxes1=rotated, boxes2=rotated + random(5, 5), mode="iou")
    hull_args = dict(
        pointsets=9 * random(5, 18), polygons=boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]] + random(5, 8) / 4
    )
    quad_args = dict(boxes1=hull_args["polygons"], boxes2=hull_args["polygons"] + random(5, 8))
    coder_args = dict(anchors=others, weights=[1.0, 1.0, 2.0, 2.0])
    focal_inputs = dict(inputs=random(4, 3) - 0.5, targets=(random(4, 3) > 0.5).float())
    focal = dict(alpha=0.25, gamma=2.0)
    point_sets = dict(points1=random(2, 5, 2), points2=random(2, 3, 2))
    softmax_inputs = dict(
        inputs=random(4, 3), targets=torch.tensor([0, 2, -1, 1]), weight=random(3)
    )
    mlp = dict(
        input=random(4, 5),
        hidden_weights=random(6, 5) - 0.5,
        hidden_bias=random(1, 6),
        output_weights=random(2, 6) - 0.5,
        output_bias=random(1, 2),
    )
    cell = dict(
        input=random(4, 3), weights=random(15, 8) - 0.5, bias=random(15), h=random(4, 5)
    ) | dict(c=random(4, 5))
    steps = cell | dict(input=random(2, 4, 3))
    states, cells, gates = torch.ops.detops.lltm_forward(**steps)
    _, *argmax_yx = torch.ops.detops.roi_align_max_forward(
        **forward_args, sampling_ratio=2, aligned=True
    )
    border_args = dict(planes, boxes=SCALE * torch.stack([boxes, others]), pool_size=3)
    _, border_argmax = torch.ops.detops.border_align_forward(**border_args)
    _, argmax = torch.ops.detops.roi_pool_forward(**forward_args)
    deform_psroi_args = dict(size, output_channels=3, **parts) | offset_args
    _, count = torch.ops.detops.deform_psroi_pool_forward(**deform_psroi_args)
    decay_args = dict(sigma=0.5, min_score=0.01, method="gaussian")
    boxes_and_scores = dict(boxes=boxes, scores=scores)
    limit_args = dict(iou_threshold=0.3, score_threshold=0.05, max_output=4)
    columns, output = torch.zeros(3), torch.zeros(2, 4, H, W)
    out_grad = random(2, 4, H, W) - 0.5
    family = dict(input=conv["input"], offset=conv["offset"], gradOutput=out_grad, columns=columns)
    deform_conv_args = CONVOLVED | dict(deformable_group=1, im2col_step=64)
    modulated = {k: conv[k] for k in ("input", "weight", "bias", "offset", "mask")}
    modulated |= dict(columns=columns, ones=columns)
    ps_options = dict(no_trans=0, spatial_scale=SCALE, output_dim=3, group_size=2, pooled_size=2)
    ps_options |= dict(part_size=2, sample_per_part=2, trans_std=0.1)
    ps_family = dict(input=planes["input"], bbox=rois, trans=offset_args["offset"])
    targets = dict(targets=torch.tensor([0, 1, 3, -1]), num_classes=3)
    deform_roi_args = dict(
        pooling_args, offset=random(5, 2, 2, 3) - 0.5, sampling_ratio=2, gamma=0.5
    )
    point_sample_args = dict(input=x, points=random(2, 5, 2) * 1.2 - 0.1)
    carafe_args = dict(features=x, masks=random(2, 9, 2 * H, 2 * W)) | dict(
        kernel_size=3, group_size=1, scale_factor=2
    )
    feature_align_args = dict(boxes=8 * random(2, H, W, 5), spatial_scale=SCALE, points=5)
    filter_indices = torch.tensor([[1, 2, 4], [2, 3, 3], [3, 4, 2], [4, 1, 1]]).view(2, 2, 1, 3)
    by_op = {
        "nms": boxes_and_scores | limit_args,
        "batched_nms": boxes_and_scores | dict(idxs=idxs, **limit_args),
        "nms_match": boxes_and_scores | dict(iou_threshold=0.3),
        "nms_padded": boxes_and_scores | dict(idxs=idxs, iou_threshold=0.3, max_output=4),
        "nms_rotated": dict(boxes=rotated, scores=scores, **limit_args),
        "batched_nms_rotated": dict(boxes=rotated, scores=scores, idxs=idxs, **limit_args),
        "soft_nms": boxes_and_scores | dict(iou_threshold=0.3, max_output=4, **decay_args),
        "matrix_nms": boxes_and_scores | dict(idxs=idxs, **decay_args),
        "weighted_box_fusion": boxes_and_scores
        | dict(labels=idxs, models=torch.tensor([0, 1, 1, 0, 2]), weights=[1.0, 2.0, 0.5])
        | dict(iou_threshold=0.3, skip_box_threshold=0.0, conf_type="avg", allows_overflow=False),
        "roi_align_forward": forward_args | dict(sampling_ratio=2, aligned=True),
        "roi_align_backward": backward_args | dict(sampling_ratio=2, aligned=True),
        "multiscale_roi_align_forward": dict(
            inputs=[x, random(2, 3, 3, 4)], boxes=rois, spatial_scales=[0.5, 0.25], **size
        )
        | pyramid,
        "multiscale_roi_align_backward": dict(
            {
                k: v
                for k, v in backward_args.items()
                if k not in ("spatial_scale", "height", "width")
            },
            spatial_scales=[0.5, 0.25],
            heights=[H, 3],
            widths=[W, 4],
            **pyramid,
        ),
        "roi_align_rotated_forward": forward_args | rotated_args | dict(sampling_ratio=2),
        "roi_align_rotated_backward": backward_args | rotated_args | dict(sampling_ratio=2),
        "riroi_align_rotated_forward": forward_args
        | rotated_args
        | dict(sampling_ratio=2, num_orientations=3, clockwise=False),
        "riroi_align_rotated_backward": backward_args
        | rotated_args
        | dict(sampling_ratio=2, num_orientations=3, clockwise=False),
        "roi_align_max_forward": forward_args | dict(sampling_ratio=2, aligned=True),
        "roi_align_max_backward": backward_args
        | dict(argmax_y=argmax_yx[0], argmax_x=argmax_yx[1], sampling_ratio=2, aligned=True),
        "border_align_forward": border_args,
        "border_align_backward": dict(grad=random(2, 3, 5, 4), boxes=border_args["boxes"])
        | dict(argmax=border_argmax, pool_size=3, height=H, width=W),
        "prroi_pool_forward": forward_args,
        "prroi_pool_backward": dict(pooling_args, grad=grad, input=x, input_wanted=True)
        | dict(boxes_wanted=True),
        "roi_pool_forward": forward_args,
        "roi_pool_backward": backward_args | dict(input=x, argmax=argmax),
        "ps_roi_align_forward": forward_args | planes | dict(sampling_ratio=2),
        "ps_roi_align_backward": ps_backward_args | dict(sampling_ratio=2),
        "ps_roi_pool_forward": forward_args | planes,
        "ps_roi_pool_backward": ps_backward_args,
        "deform_psroi_pool": deform_psroi_args,
        "deform_psroi_pool_forward": deform_psroi_args,
        "deform_psroi_pool_backward": offset_args | parts | dict(grad=grad, count=count),
        "deform_roi_pool_forward": deform_roi_args | dict(size, input=x),
        "deform_roi_pool_backward": deform_roi_args | dict(input=x, grad=grad, input_wanted=True),
        "masks_to_rle": dict(masks=random(3, H, W) > 0.5),
        "deform_conv2d_forward": conv | window,
        "deform_conv2d_backward": conv
        | window
        | dict(grad=out_grad, wanted=[True] * 5, edge_gradient=True),
        "ms_deform_attn_forward": attention,
        "ms_deform_attn_backward": attention | dict(grad=random(2, 3, 8)),
        "box_iou_matrix": pair | dict(kind="giou", eps=1e-7),
        "box_iou_forward": pair | dict(kind="giou", eps=1e-7),
        "box_iou_backward": pair | dict(grad=random(5, 5), kind="ciou", eps=1e-7),
        "box_iou_aligned": pair | dict(kind="iof", eps=1e-7),
        "box_iou_aligned_forward": pair | dict(kind="iof", eps=1e-7),
        "box_iou_aligned_backward": pair | dict(grad=random(5), kind="diou", eps=1e-7),
        "box_iou_loss": pair | dict(kind="giou", eps=1e-7),
        "box_iou_loss_forward": pair | dict(kind="giou", eps=1e-7),
        "box_iou_loss_backward": pair | dict(grad=random(5), kind="ciou", eps=1e-7),
        "match_boxes": pair,
        "linear_assignment": dict(cost=random(2, 5, 4), num_objects=torch.tensor([3, 4])),
        "box_iou_rotated": rotated_pair,
        "rotated_iou_forward": rotated_pair | dict(mode="iof"),
        "rotated_iou_backward": rotated_pair | dict(grad=random(5)),
        "rotated_iou_loss": rotated_pair | dict(mode="giou", reduction="mean", eps=1e-7),
        "encode_boxes_forward": dict(boxes=boxes, **coder_args),
        "encode_boxes_backward": dict(grad=random(5, 4), boxes=boxes, **coder_args),
        "decode_boxes_forward": dict(deltas=random(5, 8), clip=4.0, **coder_args),
        "decode_boxes_backward": dict(
            grad=random(5, 8), deltas=random(5, 8), clip=4.0, **coder_args
        ),
        "sigmoid_focal_loss_elements": focal_inputs | focal,
        "sigmoid_focal_loss_forward": focal_inputs | focal,
        "sigmoid_focal_loss_sum": focal_inputs | focal,
        "sigmoid_focal_loss_backward": focal_inputs | focal | dict(grad=random(4, 3)),
        "softmax_focal_loss_elements": softmax_inputs | focal,
        "softmax_focal_loss_forward": softmax_inputs | focal,
        "softmax_focal_loss_backward": softmax_inputs | focal | dict(grad=random(4)),
        "softmax_focal_loss": softmax_inputs | focal | dict(reduction="sum"),
        "chamfer_distance_forward": point_sets,
        "chamfer_distance_backward": point_sets
        | dict(grad1=random(2, 5), grad2=random(2, 3))
        | dict(idx1=torch.tensor([[0, 1, 2, 0, 1]] * 2), idx2=torch.tensor([[4, 0, -1]] * 2)),
        "point_sample_forward": point_sample_args,
        "point_sample_backward": point_sample_args
        | dict(grad=random(2, 3, 5), input_wanted=True, points_wanted=True),
        "carafe_forward": carafe_args,
        "carafe_backward": carafe_args
        | dict(grad=random(2, 3, 2 * H, 2 * W), features_wanted=True, masks_wanted=True),
        "masked_conv2d_forward": dict(features=x, mask=random(2, 3, 7) > 0.5, weight=conv["weight"])
        | dict(bias=conv["bias"], stride=[2, 1], padding=[1, 1]),
        "winograd_conv2d_forward": dict(input=x, weight=conv["weight"], bias=conv["bias"])
        | dict(padding=[1, 1]),
        "winograd_conv2d_backward_weight": dict(grad=random(2, 4, H, W), input=x, padding=[1, 1]),
        "batch_transpose": dict(input=random(2, 3, 5)),
        "pack_conv2d_weight": dict(weight=conv["weight"]),
        "pack_winograd_weight": dict(weight=conv["weight"]),
        "packed_conv2d": dict(input=x, packed=random(1, 1, 27, 32), bias=random(4), outputs=4)
        | dict(add=random(2, 4, 3, 7), kernel_size=[3, 3], stride=[2, 1], padding=[1, 1])
        | dict(dilation=[1, 1], relu=True),
        "corner_pool_forward": dict(input=x, mode="left"),
        "corner_pool_backward": dict(grad=random(2, 3, H, W), input=x, mode="left")
        | dict(output=torch.ops.detops.corner_pool_forward(x, "left")),
        "rotated_feature_align_forward": dict(feature_align_args, features=x),
        "rotated_feature_align_backward": dict(feature_align_args, grad=random(2, 3, H, W)),
        "active_rotated_filter_forward": dict(input=random(2, 3, 2, 2, 1), indices=filter_indices),
        "active_rotated_filter_backward": dict(grad=random(6, 6, 2, 1), indices=filter_indices)
        | dict(outputs=2, inputs=3),
        "heatmaps_to_keypoints": dict(maps=random(5, 3, 4, 6), boxes=boxes),
        "masks_to_boxes": dict(masks=random(3, 4, 5) > 0.7),
        "mask_iou": dict(masks1=random(3, 4, 5) > 0.5, masks2=random(2, 4, 5) > 0.5, mode="iof"),
        "mask_nms": dict(masks=random(5, 4, 5) > 0.2, scores=scores, iou_threshold=0.5),
        "paste_masks_in_image": dict(
            masks=random(5, 1, 3, 3), boxes=boxes, height=9, width=8, threshold=0.5
        ),
        "convex_iou": hull_args,
        "convex_giou_forward": hull_args,
        "convex_giou_backward": hull_args | dict(grad=random(5)),
        "min_area_polygons": dict(pointsets=hull_args["pointsets"]),
        "points_in_polygons": dict(points=8 * random(6, 2), polygons=hull_args["polygons"]),
        "box_iou_quadri": quad_args | dict(mode="iou"),
        "box_iou_quadri_pairs": quad_args | dict(mode="iof"),
        "nms_quadri": dict(boxes=hull_args["polygons"], scores=scores, iou_threshold=0.3),
        "axpy": dict(x=random(3, 4), y=random(3, 4), alpha=2.0),
        "axpy_forward": dict(x=random(3, 4), y=random(3, 4), alpha=2.0),
        "axpy_backward": dict(grad=random(3, 4), alpha=2.0),
        "gdh": dict(x=random(3, 4).t()),
        "gdh_forward": dict(x=random(3, 4).t()),
        "mlp": mlp,
        "mlp_forward": mlp,
        "mlp_backward": dict(grad=random(4, 2), hidden=random(4, 6), input_wanted=True)
        | {k: mlp[k] for k in ("input", "hidden_weights", "output_weights")},
        "lltm_cell": cell,
        "lltm": steps,
        "lltm_forward": steps,
        "lltm_backward": {k: v for k, v in steps.items() if k != "bias"}
        | dict(grad_output=random(2, 4, 5), grad_h=random(4, 5), grad_c=random(4, 5))
        | dict(output=states, cells=cells, gates=gates, input_wanted=True, h_wanted=True),
        "box_iou": pair | dict(fmt="xyxy", mode="iof", aligned=False),
        "generalized_box_iou": pair | dict(aligned=True),
        "distance_box_iou": pair | dict(eps=1e-7, aligned=False),
        "complete_box_iou": pair | dict(eps=1e-7, aligned=False),
        "generalized_box_iou_loss": pair | dict(reduction="mean", eps=1e-7),
        "distance_box_iou_loss": pair | dict(reduction="sum", eps=1e-7),
        "complete_box_iou_loss": pair | dict(reduction="none", eps=1e-7),
        "sigmoid_focal_loss": focal_inputs | focal | dict(reduction="mean"),
        "deform_psroi_pooling": deform_psroi_args,
        "box_area": dict(boxes=boxes, fmt="xyxy"),
        "box_convert": dict(boxes=boxes, in_fmt="xyxy", out_fmt="xywh"),
        "clip_boxes_to_image": dict(boxes=boxes, height=H, width=W),
        "remove_small_boxes": dict(boxes=boxes, min_size=3.0),
        "deform_conv_forward": deform_conv_args
        | dict(input=x, weight=conv["weight"], offset=conv["offset"], output=output)
        | dict(columns=columns, ones=columns),
        "deform_conv_backward_input": deform_conv_args
        | family
        | dict(weight=conv["weight"], gradInput=torch.zeros(0), gradOffset=torch.zeros(0)),
        "deform_conv_backward_parameters": deform_conv_args
        | family
        | dict(gradWeight=torch.zeros(4, 3, 3, 3), ones=columns, scale=1.0),
        "modulated_deform_conv_forward": MODULATED | modulated | dict(output=output),
        "modulated_deform_conv_backward": MODULATED
        | modulated
        | dict(grad_input=torch.zeros(0), grad_weight=torch.zeros(4, 3, 3, 3))
        | dict(grad_bias=torch.zeros(4), grad_offset=torch.zeros(0), grad_mask=torch.zeros(0))
        | dict(grad_output=out_grad),
        "deform_psroi_pooling_forward": ps_options
        | ps_family
        | dict(out=torch.zeros(0), top_count=torch.zeros(0)),
        "deform_psroi_pooling_backward": ps_options
        | ps_family
        | dict(out_grad=random(5, 3, 2, 2), top_count=torch.full((5, 3, 2, 2), 4.0))
        | dict(input_grad=torch.zeros(2, 12, H, W), trans_grad=torch.zeros(5, 2, 2, 2)),
        "sigmoid_focalloss_forward": targets | focal | dict(logits=random(4, 3)),
        "sigmoid_focalloss_backward": targets
        | focal
        | dict(logits=random(4, 3), d_losses=random(4, 3)),
    }
    public = (
        *("roi_align", "multiscale_roi_align", "roi_align_rotated", "roi_pool", "ps_roi_align"),
        *("roi_align_max", "border_align", "prroi_pool", "riroi_align_rotated"),
        *("rotated_feature_align", "active_rotated_filter"),
        *("point_sample", "carafe", "masked_conv2d", "deform_roi_pool", "corner_pool"),
        "winograd_conv2d",
        "chamfer_distance",
        *("ps_roi_pool", "deform_conv2d", "ms_deform_attn", "encode_boxes", "decode_boxes"),
        *("rotated_iou", "convex_giou"),
    )
    return by_op | {name: by_op[f"{name}_forward"] for name in public}
