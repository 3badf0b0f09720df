"""The region proposal network: "Faster R-CNN" (Ren et al., 2015), section 3.1."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops import BoxCoder
from ..backbone.conv import conv2d
from ..balanced_sampler import BalancedSampler
from ..convention import Convention
from ..matcher import Matcher
from ..registry import RPN_HEADS
from .anchor_generator import AnchorGenerator, per_anchor
from .inference import ProposalSelector
from .loss import RPNLoss


@RPN_HEADS.register("SingleConvRPNHead")
class RPNHead(nn.Module):
    """A 3x3 convolution, then objectness and box deltas of every anchor."""

    def __init__(self, in_channels: int, num_anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, 3, padding=1)
        self.cls_logits = nn.Conv2d(in_channels, num_anchors, 1)
        self.bbox_pred = nn.Conv2d(in_channels, num_anchors * 4, 1)
        for layer in (self.conv, self.cls_logits, self.bbox_pred):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns per level objectness ``[N, H * W * A]`` and deltas ``[N, H * W * A, 4]``.

        Both are in float32, in the order of the anchors.
        """
        logits, deltas = [], []
        for x in features:
            x = conv2d(self.conv, x, relu=True)
            logits.append(per_anchor(conv2d(self.cls_logits, x), 1).squeeze(2))
            deltas.append(per_anchor(conv2d(self.bbox_pred, x), 4))
        return logits, deltas

    def at(self, features: Sequence[Tensor], anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Returns objectness ``[K]`` and deltas ``[K, 4]`` of selected anchors only.

        Args:
            features: per level ``[N, C, H, W]``.
            anchors: int64 ``[K]``, indices over all levels of the first image, then of the next.
        """
        per_position = self.cls_logits.out_channels
        sizes = [x.shape[-2] * x.shape[-1] * per_position for x in features]
        image, anchor = anchors // sum(sizes), anchors % sum(sizes)
        windows, order = [], []
        for x, size in zip(features, sizes, strict=True):
            on_level = torch.nonzero((anchor >= 0) & (anchor < size)).squeeze(1)
            windows.append(_windows(x, image[on_level], anchor[on_level] // per_position))
            order.append(on_level)
            anchor = anchor - size
        weight = self.conv.weight.permute(0, 2, 3, 1).flatten(1)
        x = F.relu_(F.linear(torch.cat(windows).flatten(1), weight, self.conv.bias))
        logits, deltas = (
            F.linear(x, layer.weight.flatten(1), layer.bias).float()
            for layer in (self.cls_logits, self.bbox_pred)
        )
        rows, cell_anchor = torch.cat(order).argsort(), anchors % per_position
        return logits[rows, cell_anchor], deltas.unflatten(1, (-1, 4))[rows, cell_anchor]


def _windows(x: Tensor, image: Tensor, position: Tensor) -> Tensor:
    """Gathers 3x3 pixels around K positions, zero-padded: ``[N, C, H, W]`` to ``[K, 9, C]``."""
    height, width = x.shape[-2:]
    step = torch.arange(-1, 2, device=x.device)
    row = (position // width).view(-1, 1, 1) + step.view(1, -1, 1)
    column = (position % width).view(-1, 1, 1) + step.view(1, 1, -1)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    row, column = row.clamp(0, height - 1), column.clamp(0, width - 1)
    index = (image.view(-1, 1, 1) * height + row) * width + column
    # Windows overlap. F.embedding sums their gradients in a fixed order, x[index] does not.
    pixels = F.embedding(index.flatten(1), x.permute(0, 2, 3, 1).flatten(0, 2))
    return pixels * inside.flatten(1).unsqueeze(2)


class RPN(nn.Module):
    """The head, anchors, proposal selection and loss of a region proposal network.

    Pairs of values are for (training, inference).

    Args:
        anchor_generator: see :class:`AnchorGenerator`.
        head: maps levels to objectness and deltas, of all anchors or of selected ones; see
            :class:`RPNHead`.
        matcher: assigns ground truth to anchors.
        sampler: selects the anchors that the loss is computed on.
        box_coder: encodes and decodes the deltas.
        pre_nms_top_n: number of best anchors per level that are decoded.
        post_nms_top_n: number of best proposals per level that are kept.
        fpn_post_nms_top_n: number of best proposals over all levels that are kept, if there are
            several levels.
        fpn_post_nms_per_batch: in training, apply that limit to the batch, including the images of
            all processes, instead of to each image.
        nms_thresh: IoU above which the lower-scoring of two proposals on one level is removed.
        min_size: minimum side of a proposal, in pixels.
        final: no heads follow, so proposals are returned as detections.
        convention: determines how proposals are clipped.
    """

    def __init__(
        self,
        *,
        anchor_generator: AnchorGenerator,
        head: RPNHead,
        matcher: Matcher,
        sampler: BalancedSampler,
        box_coder: BoxCoder,
        pre_nms_top_n: tuple[int, int],
        post_nms_top_n: tuple[int, int],
        fpn_post_nms_top_n: tuple[int, int],
        fpn_post_nms_per_batch: bool,
        nms_thresh: float,
        min_size: float,
        final: bool = False,
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.anchor_generator = anchor_generator
        self.head: Any = head
        self.final = final
        self.loss = RPNLoss(matcher, sampler, box_coder)
        self.selectors = tuple(
            ProposalSelector(
                box_coder=box_coder,
                pre_nms_top_n=pre_nms_top_n[i],
                post_nms_top_n=post_nms_top_n[i],
                fpn_post_nms_top_n=fpn_post_nms_top_n[i],
                per_batch=fpn_post_nms_per_batch and i == 0,
                nms_thresh=nms_thresh,
                min_size=min_size,
                convention=convention,
            )
            for i in range(2)
        )

    def forward(
        self,
        features: Sequence[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[Any], dict[str, Tensor]]:
        """Returns the proposals of each image, and in training the losses.

        Args:
            features: per level ``[N, C, H, W]``.
            image_sizes: (height, width) of each image inside the batch.
            targets: in training, per image at least ``boxes`` ``[G, 4]``.

        Returns:
            Per image ``[n, 4]``, best first, without gradient; losses by name. If ``final``, per
            image ``boxes`` ``[n, 4]``, ``labels`` ``[n]``, all 1, and ``scores`` ``[n]``, the
            objectness in 0..1. In training that list is empty: the losses do not need it.
        """
        anchors = self.anchor_generator(features)
        proposals = []
        if not (self.final and self.training):
            select = self.selectors[0 if self.training else 1]
            with torch.no_grad():
                logits, deltas = self.head(features)
                proposals = select(logits, deltas, anchors, image_sizes)
        if not self.training:
            return [_detections(*p) if self.final else p[0] for p in proposals], {}
        if targets is None:
            raise ValueError("RPN: targets are required in training, got None")
        all_anchors = torch.cat(anchors)
        visible = [self.anchor_generator.visible(all_anchors, size) for size in image_sizes]
        # The loss uses a few hundred anchors: gradients are computed only for these.
        sample = self.loss.sample(all_anchors, visible, targets)
        sampled_logits, sampled_deltas = self.head.at(features, sample.anchors)
        losses = self.loss(sampled_logits, sampled_deltas, sample)
        return [boxes for boxes, _ in proposals], losses


def _detections(boxes: Tensor, logits: Tensor) -> dict[str, Tensor]:
    labels = torch.ones_like(logits, dtype=torch.int64)
    return {"boxes": boxes, "labels": labels, "scores": logits.sigmoid()}
