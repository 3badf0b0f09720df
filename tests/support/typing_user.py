"""A user program that calls each family of ops; test_typing.py runs the type checkers on it.

If a call loses its types, ``assert_type`` sees ``Any``.
"""

from typing import assert_type

import torch
from torch import Tensor

import detops
from detops.config import load_config
from detops.engine import Detector, load_weights_into
from detops.modeling import build_detection_model


def boxes_and_scores(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    keep = assert_type(detops.batched_nms(boxes, scores, labels, 0.5, max_output=100), Tensor)
    soft, _ = assert_type(detops.soft_nms(boxes, scores, method="gaussian"), tuple[Tensor, Tensor])
    rotated = torch.cat([detops.box_convert(boxes, "xyxy", "cxcywh"), scores[:, None]], 1)
    assert_type(detops.nms_rotated(rotated, scores, 0.5), Tensor)
    overlap, partner = detops.match_boxes(boxes[keep], boxes[soft])
    coder = detops.BoxCoder((10.0, 10.0, 5.0, 5.0))
    deltas = assert_type(coder.encode(boxes, boxes), Tensor)
    loss = detops.generalized_box_iou_loss(coder.decode(deltas, boxes), boxes, reduction="sum")
    loss = loss + detops.sigmoid_focal_loss(scores, labels.float(), reduction="mean")
    polygons = detops.box_convert(rotated, "cxcywhr", "xyxyxyxy")
    inside = assert_type(detops.points_in_polygons(boxes[:, :2], polygons), Tensor)
    return loss + overlap.mean() + partner.sum() + inside.sum()


def pooled(maps: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]) -> Tensor:
    pool = detops.MultiScaleRoIAlign(["0", "1"], output_size=7, sampling_ratio=2)
    levels = assert_type(pool(maps, boxes, sizes), Tensor)
    align = detops.RoIAlign(7, spatial_scale=0.25, sampling_ratio=2, aligned=True)
    one = assert_type(align(maps["0"], boxes), Tensor)
    assert_type(detops.RoIAlignRotated(7, 0.25, 2)(maps["0"], [b[:, :1] for b in boxes]), Tensor)
    convolution = detops.DeformConv2d(256, 256, kernel_size=3, padding=1)
    moved = assert_type(convolution(maps["0"], offset=maps["0"][:, :18]), Tensor)
    assert_type(detops.WinogradConv2d(256, 64)(moved), Tensor)
    assert_type(detops.CornerPool("top")(moved), Tensor)
    return levels + one + detops.point_sample(moved, boxes[0][None, :, :2]).mean()


def masks(logits: Tensor, boxes: Tensor, scores: Tensor) -> list[Tensor]:
    pasted = detops.paste_masks_in_image(logits.sigmoid(), boxes, (480, 640))
    keep = assert_type(detops.mask_nms(pasted, scores, 0.5), Tensor)
    return [detops.masks_to_boxes(pasted[keep]), detops.mask_iou(pasted, pasted)]


def recurrent(x: Tensor) -> Tensor:
    output, (h, _) = detops.LLTMSequence(32, 128)(x)
    return assert_type(detops.MLP()(x[0]), Tensor) + output.sum() + h.sum()


def detector(images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
    model = build_detection_model(load_config(None, ["MODEL.MASK_ON", True]))
    load_weights_into(model, "weights.pth")
    losses = assert_type(model.train()(images, targets), dict[str, Tensor])
    found = assert_type(model.eval()(images), list[dict[str, Tensor]])
    fast = detops.optimize(model)
    found += fast(images)
    with detops.patch_torchvision():
        several = Detector.from_checkpoint("weights.pth").detect("photo.jpg")
    assert several["scores"] is not None
    return torch.stack([*losses.values(), found[0]["scores"].sum()])
