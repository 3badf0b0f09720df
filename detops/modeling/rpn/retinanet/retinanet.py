"""RetinaNet: "Focal Loss for Dense Object Detection" (Lin et al., 2017), section 4."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...backbone.conv import conv2d
from ..anchor_generator import AnchorGenerator, per_anchor
from .inference import RetinaNetPostProcessor
from .loss import RetinaNetLoss


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _tower(channels: int, depth: int) -> nn.Sequential:
    pairs = ((_conv(channels, channels), nn.ReLU(inplace=True)) for _ in range(depth))
    return nn.Sequential(*(layer for pair in pairs for layer in pair))


def _run_tower(tower: nn.Sequential, x: Tensor) -> Tensor:
    """Computes ``tower(x)``, with each convolution and its ReLU fused."""
    for i in range(0, len(tower), 2):
        x = conv2d(tower[i], x, relu=True)
    return x


class RetinaNetHead(nn.Module):
    """Two towers of 3x3 convolutions, for classes and box deltas, shared by all levels.

    Args:
        in_channels: channels of every level.
        num_anchors: anchors per position.
        num_classes: number of classes, without background.
        num_convs: depth of the towers.
        prior_prob: initial score of every class, section 4.1 of the paper.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_anchors: int,
        num_classes: int,
        num_convs: int = 4,
        prior_prob: float = 0.01,
    ) -> None:
        super().__init__()
        if not 0 < prior_prob < 1:
            raise ValueError(f"RetinaNetHead: expected prior_prob in (0, 1), got {prior_prob}")
        if num_classes < 1:
            raise ValueError(f"RetinaNetHead: expected at least one class, got {num_classes}")
        self.num_classes = num_classes
        self.cls_tower = _tower(in_channels, num_convs)
        self.bbox_tower = _tower(in_channels, num_convs)
        self.cls_logits = _conv(in_channels, num_anchors * num_classes)
        self.bbox_pred = _conv(in_channels, num_anchors * 4)
        nn.init.constant_(self.cls_logits.bias, math.log(prior_prob / (1 - prior_prob)))  # type: ignore[arg-type]

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns per level logits ``[N, H * W * A, C]`` and deltas ``[N, H * W * A, 4]``.

        Both are in float32, in the order of the anchors.
        """
        logits, deltas = [], []
        for x in features:
            classes = conv2d(self.cls_logits, _run_tower(self.cls_tower, x))
            logits.append(per_anchor(classes, self.num_classes))
            boxes = conv2d(self.bbox_pred, _run_tower(self.bbox_tower, x))
            deltas.append(per_anchor(boxes, 4))
        return logits, deltas


class RetinaNet(nn.Module):
    """The anchors, head, post-processor and loss of a RetinaNet.

    Args:
        anchor_generator: see :class:`~detops.modeling.rpn.AnchorGenerator`.
        head: maps levels to logits and deltas.
        loss: see :class:`RetinaNetLoss`.
        post_processor: see :class:`RetinaNetPostProcessor`.
    """

    def __init__(
        self,
        *,
        anchor_generator: AnchorGenerator,
        head: nn.Module,
        loss: RetinaNetLoss,
        post_processor: RetinaNetPostProcessor,
    ) -> None:
        super().__init__()
        self.anchor_generator = anchor_generator
        self.head = head
        self.loss = loss
        self.post_processor = post_processor

    def forward(
        self,
        features: Sequence[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Returns the detections of each image in inference, the losses in training.

        Args:
            features: per level ``[N, C, H, W]``.
            image_sizes: (height, width) of each image inside the batch.
            targets: in training, per image ``boxes`` ``[G, 4]`` and ``labels`` ``[G]``.

        Returns:
            Per image ``boxes`` ``[n, 4]``, ``labels`` ``[n]`` and ``scores`` ``[n]``, best first;
            losses by name.

        Raises:
            ValueError: targets are missing in training.
        """
        logits, deltas = self.head(features)
        anchors = self.anchor_generator(features)
        if not self.training:
            return self.post_processor(logits, deltas, anchors, image_sizes), {}
        if targets is None:
            raise ValueError("RetinaNet: targets are required in training, got None")
        all_anchors = torch.cat(anchors)
        visible = [self.anchor_generator.visible(all_anchors, size) for size in image_sizes]
        return [], self.loss(logits, deltas, all_anchors, visible, targets)
