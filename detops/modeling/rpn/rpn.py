"""The region proposal network: "Faster R-CNN" (Ren et al., 2015), section 3.1."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...ops import BoxCoder
from ..backbone.conv import conv2d
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher
from ..registry import RPN_HEADS
from .anchor_generator import AnchorGenerator
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
        """Per level objectness ``[N, H * W * A]`` and deltas ``[N, H * W * A, 4]``.

        In the order of the anchors; half precision is left here.
        """
        logits, deltas = [], []
        for x in features:
            x = conv2d(self.conv, x, relu=True)
            n = x.size(0)
            logits.append(conv2d(self.cls_logits, x).permute(0, 2, 3, 1).reshape(n, -1).float())
            deltas.append(conv2d(self.bbox_pred, x).permute(0, 2, 3, 1).reshape(n, -1, 4).float())
        return logits, deltas


class RPN(nn.Module):
    """Head, anchors, selection of proposals and loss.

    Pairs are (in training, in inference).

    Args:
        anchor_generator: see there.
        head: maps to objectness and deltas.
        matcher: anchors to ground truth.
        sampler: anchors that the loss is computed on.
        box_coder: meaning of the deltas.
        pre_nms_top_n: best anchors per level that are decoded.
        post_nms_top_n: best proposals per level that stay.
        fpn_post_nms_top_n: best proposals over all levels that stay, if there are several.
        fpn_post_nms_per_batch: in training, count that over the batch instead of per image.
        nms_thresh: IoU above which the worse of two proposals of one level falls.
        min_size: shortest side, in pixels, of a proposal.
        final: nothing comes behind: proposals are given as detections.
    """

    def __init__(
        self,
        *,
        anchor_generator: AnchorGenerator,
        head: nn.Module,
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
    ) -> None:
        super().__init__()
        self.anchor_generator = anchor_generator
        self.head = head
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
            )
            for i in range(2)
        )

    def forward(
        self,
        features: Sequence[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[Any], dict[str, Tensor]]:
        """Proposals of each image, and in training the losses.

        Args:
            features: per level ``[N, C, H, W]``.
            image_sizes: (height, width) of each image inside the batch.
            targets: in training, per image at least ``boxes`` ``[G, 4]``.

        Returns:
            per image ``[n, 4]``, best first, without gradient; losses by name. If ``final``, per
            image ``boxes`` ``[n, 4]``, ``labels`` ``[n]``, all 1, and ``scores`` ``[n]``, the
            objectness in 0..1; in training none, for the losses do without.
        """
        logits, deltas = self.head(features)
        anchors = self.anchor_generator(features)
        proposals = []
        if not (self.final and self.training):
            select = self.selectors[0 if self.training else 1]
            with torch.no_grad():
                proposals = select(logits, deltas, anchors, image_sizes)
        if not self.training:
            return [_detections(*p) if self.final else p[0] for p in proposals], {}
        if targets is None:
            raise ValueError("RPN: targets are needed in training, got None")
        every = torch.cat(anchors)
        visible = [self.anchor_generator.visible(every, size) for size in image_sizes]
        losses = self.loss(torch.cat(logits, 1), torch.cat(deltas, 1), every, visible, targets)
        return [boxes for boxes, _ in proposals], losses


def _detections(boxes: Tensor, logits: Tensor) -> dict[str, Tensor]:
    labels = torch.ones_like(logits, dtype=torch.int64)
    return {"boxes": boxes, "labels": labels, "scores": logits.sigmoid()}
