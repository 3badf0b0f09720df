"""Slow inference of detectron2 R-CNNs and RetinaNet on a ResNet-50, from its own state dict.

NMS, pooling and pasting process one box at a time.
"""

import math

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.nn import functional as F

MEAN = (103.53, 116.28, 123.675)  # BGR
RATIOS = (0.5, 1.0, 2.0)
BLOCKS = {"res2": 3, "res3": 4, "res4": 6, "res5": 3}
MAX_LOG_SCALE = math.log(1000 / 16)


def resized_size(height, width, small, large):
    """Computes the size like ResizeShortestEdge."""
    scale = small * 1.0 / min(height, width)
    if height < width:
        new_height, new_width = small, scale * width
    else:
        new_height, new_width = scale * height, small
    if max(new_height, new_width) > large:
        scale = large * 1.0 / max(new_height, new_width)
        new_height, new_width = new_height * scale, new_width * scale
    return int(new_height + 0.5), int(new_width + 0.5)


def prepare(image, small, large, mean=MEAN):
    """Resizes RGB bytes ``[h, w, 3]`` to BGR in 0..255, minus the mean."""
    height, width = resized_size(*image.shape[:2], small, large)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    bgr = torch.from_numpy(np.array(resized)[..., ::-1].copy()).permute(2, 0, 1)
    return bgr.float() - torch.tensor(mean).view(3, 1, 1)


def pad_batch(images):
    """Pads images with zeros, right and below, to sides divisible by 32."""
    height = -(-max(i.shape[1] for i in images) // 32) * 32
    width = -(-max(i.shape[2] for i in images) // 32) * 32
    return torch.stack([F.pad(i, (0, width - i.shape[2], 0, height - i.shape[1])) for i in images])


def conv(state, name, x, stride=1, learn=False):
    """Runs a convolution and its batch norm, which stores its statistics if ``learn`` is set."""
    weight = state[f"{name}.weight"]
    x = F.conv2d(x, weight, state.get(f"{name}.bias"), stride, weight.shape[-1] // 2)
    if f"{name}.norm.weight" not in state:
        return x
    if learn:
        state[f"{name}.norm.running_mean"] = x.mean((0, 2, 3))
        state[f"{name}.norm.running_var"] = x.var((0, 2, 3))
    mean, var, gain, shift = (
        state[f"{name}.norm.{key}"].view(1, -1, 1, 1)
        for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * gain + shift


def body(state, x, learn=False, stride_in_1x1=True):
    """Returns res2 to res5."""
    root = "backbone.bottom_up"
    x = F.max_pool2d(conv(state, f"{root}.stem.conv1", x, 2, learn).relu(), 3, 2, 1)
    maps = []
    for stage, blocks in BLOCKS.items():
        for i in range(blocks):
            name = f"{root}.{stage}.{i}"
            stride = 2 if i == 0 and stage != "res2" else 1
            first, second = (stride, 1) if stride_in_1x1 else (1, stride)
            y = conv(state, f"{name}.conv1", x, first, learn).relu()
            y = conv(state, f"{name}.conv2", y, second, learn).relu()
            y = conv(state, f"{name}.conv3", y, 1, learn)
            if i == 0:
                x = conv(state, f"{name}.shortcut", x, stride, learn)
            x = (x + y).relu()
        maps.append(x)
    return maps


def pyramid(state, maps, retinanet=False):
    """Returns p2 to p6, or p3 to p7 for RetinaNet."""
    levels = range(3, 6) if retinanet else range(2, 6)
    merged = {}
    for level in reversed(levels):
        merged[level] = conv(state, f"backbone.fpn_lateral{level}", maps[level - 2])
        if level < 5:
            merged[level] += merged[level + 1].repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = [conv(state, f"backbone.fpn_output{level}", merged[level]) for level in levels]
    if not retinanet:
        return [*found, found[-1][:, :, ::2, ::2]]
    p6 = conv(state, "backbone.top_block.p6", maps[-1], 2)
    return [*found, p6, conv(state, "backbone.top_block.p7", p6.relu(), 2)]


def cell_anchors(sizes, ratios=RATIOS):
    """Returns unrounded anchors about (0, 0), size by size."""
    found = []
    for size in sizes:
        for ratio in ratios:
            width = math.sqrt(size**2 / ratio)
            height = ratio * width
            found.append([-width / 2, -height / 2, width / 2, height / 2])
    return torch.tensor(found)


def grid_anchors(sizes, level, stride):
    """Returns anchors of ``[N, C, H, W]``; those of the first cell are about the image corner."""
    cell = cell_anchors(sizes)
    return torch.cat(
        [
            cell + torch.tensor([x, y, x, y]) * stride
            for y in range(level.shape[2])
            for x in range(level.shape[3])
        ]
    )


def by_anchor(x, values):
    """Reorders one image's ``[A * values, H, W]`` to ``[H * W * A, values]``."""
    anchors = x.shape[0] // values
    return x.view(anchors, values, *x.shape[1:]).permute(2, 3, 0, 1).reshape(-1, values)


def decode(deltas, boxes, weights):
    """Decodes deltas ``[N, 4]`` of boxes ``[N, 4]``."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    x, y = boxes[:, 0] + 0.5 * width, boxes[:, 1] + 0.5 * height
    dx, dy, dw, dh = (deltas / torch.tensor(weights)).unbind(1)
    x, y = dx * width + x, dy * height + y
    width, height = (
        dw.clamp(max=MAX_LOG_SCALE).exp() * width,
        dh.clamp(max=MAX_LOG_SCALE).exp() * height,
    )
    return torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 1)


def clip(boxes, size):
    """Clips corners to 0 up to width or height, both inclusive."""
    height, width = size
    return torch.minimum(boxes.clamp(min=0), torch.tensor([width, height] * 2).to(boxes))


def has_area(boxes):
    """Returns which boxes have an area."""
    return (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])


def nms(boxes, scores, kinds, threshold):
    """Keeps the best boxes first; suppresses boxes of the same kind above the threshold."""
    remaining = scores.argsort(descending=True, stable=True)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept = []
    while len(remaining):
        best, remaining = remaining[0], remaining[1:]
        kept.append(int(best))
        low = torch.maximum(boxes[best, :2], boxes[remaining, :2])
        high = torch.minimum(boxes[best, 2:], boxes[remaining, 2:])
        intersection = (high - low).clamp(min=0).prod(1)
        iou = intersection / (area[best] + area[remaining] - intersection)
        remaining = remaining[~((iou > threshold) & (kinds[remaining] == kinds[best]))]
    return torch.tensor(kept, dtype=torch.long)


def rpn_outputs(state, features):
    """Returns per level logits ``[N, A, H, W]`` and deltas ``[N, 4 A, H, W]``."""
    root = "proposal_generator.rpn_head"
    hidden = [conv(state, f"{root}.conv", x).relu() for x in features]
    logits = [conv(state, f"{root}.objectness_logits", x) for x in hidden]
    return logits, [conv(state, f"{root}.anchor_deltas", x) for x in hidden]


def propose(state, features, sizes, anchor_sizes, before, after):
    """Returns the best boxes ``[n, 4]`` of all levels per image."""
    logits, deltas = rpn_outputs(state, features)
    found = []
    for i, size in enumerate(sizes):
        boxes, scores, levels = [], [], []
        for level, x in enumerate(features):
            anchors = grid_anchors([anchor_sizes[level]], x, 4 * 2**level)
            score = by_anchor(logits[level][i], 1)[:, 0]
            score, index = score.topk(min(before, len(score)))
            decoded = decode(by_anchor(deltas[level][i], 4), anchors, (1.0, 1, 1, 1))[index]
            boxes.append(clip(decoded, size))
            scores.append(score)
            levels.append(torch.full_like(index, level))
        boxes, scores, levels = torch.cat(boxes), torch.cat(scores), torch.cat(levels)
        rows = has_area(boxes)
        boxes, scores, levels = boxes[rows], scores[rows], levels[rows]
        found.append(boxes[nms(boxes, scores, levels, 0.7)[:after]])
    return found


def fpn_level(box, canonical=224):
    """Returns a level from 2 to 5."""
    side = ((box[2] - box[0]) * (box[3] - box[1])).sqrt()
    level = torch.floor(4 + torch.log2(side / canonical + np.finfo(float).eps))
    return int(level.clamp(2, 5))


def pool(features, boxes, output_size, canonical=224):
    """Pools from a list of levels with a list of boxes per image."""
    rows = []
    for image, image_boxes in enumerate(boxes):
        for box in image_boxes:
            level = fpn_level(box, canonical)
            roi = torch.cat([torch.tensor([float(image)]), box])[None]
            rows.append(
                torchvision.ops.roi_align(
                    features[level - 2], roi, output_size, 0.5**level, 0, aligned=True
                )
            )
    return torch.cat(rows)


def box_outputs(state, pooled):
    """Returns logits ``[K, C + 1]``, the background last, and deltas ``[K, 4 C]``."""
    x = pooled.flatten(1)
    for name in ("fc1", "fc2"):
        root = f"roi_heads.box_head.{name}"
        x = F.linear(x, state[f"{root}.weight"], state[f"{root}.bias"]).relu()
    return [
        F.linear(x, state[f"{root}.weight"], state[f"{root}.bias"])
        for root in ("roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred")
    ]


def detect(logits, deltas, proposals, size, score_thresh, threshold, max_detections):
    """Returns boxes, scores and classes (from 0) of one image, best first."""
    probabilities = logits.softmax(1)[:, :-1]
    boxes, scores, classes = [], [], []
    for label in range(probabilities.size(1)):
        class_deltas = deltas[:, 4 * label : 4 * label + 4]
        decoded = clip(decode(class_deltas, proposals, (10.0, 10, 5, 5)), size)
        rows = (probabilities[:, label] > score_thresh).nonzero()[:, 0]
        boxes.append(decoded[rows])
        scores.append(probabilities[rows, label])
        classes.append(torch.full((len(rows),), label))
    boxes, scores, classes = torch.cat(boxes), torch.cat(scores), torch.cat(classes)
    keep = nms(boxes, scores, classes, threshold)[:max_detections]
    return boxes[keep], scores[keep], classes[keep]


def mask_outputs(state, pooled):
    """Returns logits ``[K, C, 2 M, 2 M]``."""
    root, x = "roi_heads.mask_head", pooled
    for i in range(1, 5):
        x = conv(state, f"{root}.mask_fcn{i}", x).relu()
    x = F.conv_transpose2d(x, state[f"{root}.deconv.weight"], state[f"{root}.deconv.bias"], 2)
    return conv(state, f"{root}.predictor", x.relu())


def paste(mask, box, size):
    """Pastes probabilities ``[M, M]`` into an image; the threshold applies later, by >=."""
    height, width = size
    x1, y1, x2, y2 = box
    y = (torch.arange(height) + 0.5 - y1) / (y2 - y1) * 2 - 1
    x = (torch.arange(width) + 0.5 - x1) / (x2 - x1) * 2 - 1
    grid = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], 2)
    return F.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0]


def to_original_image(found, size, image):
    """Scales boxes from the batch to the image; drops those without area there."""
    height, width = image.shape[:2]
    factors = torch.tensor([width / size[1], height / size[0]]).repeat(2)
    found["boxes"] = clip(found["boxes"] * factors, (height, width))
    rows = has_area(found["boxes"])
    found = {key: value[rows] for key, value in found.items()}
    if "masks" in found:
        pasted = [
            paste(mask, box, (height, width))
            for mask, box in zip(found["masks"], found["boxes"], strict=True)
        ]
        found["masks"] = torch.stack(pasted)
    return found


def rcnn(state, images, settings, learn=False):
    """Returns ``boxes``, ``scores``, ``classes`` per image, and ``masks`` if the net has masks.

    With ``learn``, norms store the statistics of the images, and predictors get a spread.
    """
    prepared = [prepare(p, settings["small"], settings["large"]) for p in images]
    sizes = [tuple(i.shape[1:]) for i in prepared]
    features = pyramid(state, body(state, pad_batch(prepared), learn))
    if learn:
        for layer, outputs, std in zip(
            ("objectness_logits", "anchor_deltas"),
            rpn_outputs(state, features),
            (1.5, 0.3),
            strict=True,
        ):
            set_output_std(state, f"proposal_generator.rpn_head.{layer}", outputs, std)
    proposals = propose(
        state, features, sizes, settings["anchors"], settings["before"], settings["after"]
    )
    pooled = pool(features, proposals, 7, settings["canonical"])
    if learn:
        for layer, outputs, std in zip(
            ("cls_score", "bbox_pred"), box_outputs(state, pooled), (2.0, 1.0), strict=True
        ):
            set_output_std(state, f"roi_heads.box_predictor.{layer}", [outputs], std)
    counts = [len(p) for p in proposals]
    found = []
    for i, (logits, deltas) in enumerate(
        zip(*(x.split(counts) for x in box_outputs(state, pooled)), strict=True)
    ):
        boxes, scores, classes = detect(
            logits, deltas, proposals[i], sizes[i], settings["score"], 0.5, settings["most"]
        )
        result = {"boxes": boxes, "scores": scores, "classes": classes}
        if "roi_heads.mask_head.deconv.weight" in state:
            maps = pool([f[i : i + 1] for f in features], [boxes], 14, settings["canonical"])
            if learn:
                set_output_std(
                    state, "roi_heads.mask_head.predictor", [mask_outputs(state, maps)], 3.0
                )
            masks = mask_outputs(state, maps).sigmoid()
            result["masks"] = masks[torch.arange(len(boxes)), classes]
        found.append(to_original_image(result, sizes[i], images[i]))
    return found


def retinanet_outputs(state, features):
    """Returns per level logits ``[N, A C, H, W]`` and deltas ``[N, 4 A, H, W]``."""
    found = []
    for kind, last in (("cls", "cls_score"), ("bbox", "bbox_pred")):
        outputs = []
        for x in features:
            for i in range(0, 8, 2):
                x = conv(state, f"head.{kind}_subnet.{i}", x).relu()
            outputs.append(conv(state, f"head.{last}", x))
        found.append(outputs)
    return found


def retinanet(state, images, settings, learn=False):
    """Returns ``boxes``, ``scores`` and ``classes`` per image, like ``rcnn``."""
    prepared = [prepare(p, settings["small"], settings["large"]) for p in images]
    features = pyramid(state, body(state, pad_batch(prepared), learn), retinanet=True)
    if learn:
        logits, deltas = retinanet_outputs(state, features)
        set_output_std(state, "head.cls_score", logits, 1.5, -4.0)
        set_output_std(state, "head.bbox_pred", deltas, 0.3)
    logits, deltas = retinanet_outputs(state, features)
    found = []
    for i, prepared_image in enumerate(prepared):
        boxes, scores, classes = [], [], []
        for level, x in enumerate(features):
            sizes = [settings["anchors"][level] * 2 ** (k / 3) for k in range(3)]
            anchors = grid_anchors(sizes, x, 8 * 2**level)
            score = by_anchor(logits[level][i], settings["classes"]).sigmoid()
            anchor, label = (score > settings["score"]).nonzero().unbind(1)
            score = score[anchor, label]
            best = score.argsort(descending=True, stable=True)[:1000]
            anchor, label = anchor[best], label[best]
            selected = by_anchor(deltas[level][i], 4)[anchor]
            boxes.append(decode(selected, anchors[anchor], (1.0, 1, 1, 1)))
            scores.append(score[best])
            classes.append(label)
        boxes, scores, classes = torch.cat(boxes), torch.cat(scores), torch.cat(classes)
        keep = nms(boxes, scores, classes, 0.5)[: settings["most"]]
        result = {"boxes": boxes[keep], "scores": scores[keep], "classes": classes[keep]}
        found.append(to_original_image(result, tuple(prepared_image.shape[1:]), images[i]))
    return found


def set_output_std(state, layer, outputs, std, mean=0.0):
    """Rescales a layer to this deviation of its outputs (channels second) and channel mean."""
    outputs = torch.cat([x.movedim(1, -1).flatten(0, -2) for x in outputs])
    scale = std / (outputs - outputs.mean(0)).std()
    state[f"{layer}.weight"] *= scale
    state[f"{layer}.bias"] = (state[f"{layer}.bias"] - outputs.mean(0)) * scale + mean
