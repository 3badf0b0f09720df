"""The box head: "Fast R-CNN" (Girshick, 2015)."""

from collections.abc import Sequence

from torch import Tensor, nn

from ....ops import BoxCoder
from ...balanced_sampler import BalancedSampler
from ...convention import Convention
from ...matcher import Matcher
from .inference import BoxPostProcessor, Candidates
from .loss import BoxLoss


class BoxHead(nn.Module):
    """The feature extractor, predictor, post-processor and loss of the box head.

    Args:
        feature_extractor: maps levels and boxes to feature vectors.
        predictor: maps feature vectors to logits and deltas.
        box_coder: encodes and decodes the deltas.
        matcher: assigns ground truth to proposals.
        sampler: selects the proposals that the loss is computed on.
        score_thresh: score that a detection must exceed.
        nms_thresh: IoU above which the lower-scoring of two detections of one class is removed.
        detections_per_img: maximum number of detections of an image.
        class_agnostic: all classes share the deltas.
        convention: determines how detections are clipped.
    """

    def __init__(
        self,
        *,
        feature_extractor: nn.Module,
        predictor: nn.Module,
        box_coder: BoxCoder,
        matcher: Matcher,
        sampler: BalancedSampler,
        score_thresh: float,
        nms_thresh: float,
        detections_per_img: int,
        class_agnostic: bool = False,
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.feature_extractor = feature_extractor
        self.predictor = predictor
        self.loss = BoxLoss(matcher, sampler, box_coder, class_agnostic)
        self.post_processor = BoxPostProcessor(
            box_coder, score_thresh, nms_thresh, detections_per_img, convention
        )

    def forward(
        self,
        features: Sequence[Tensor],
        proposals: list[Tensor],
        image_sizes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
        extra_candidates: list[list[Candidates]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Returns detections of each image in inference, losses and positive samples in training.

        Args:
            features: per level ``[N, C, H, W]``.
            proposals: per image ``[n, 4]``.
            image_sizes: (height, width) of each image inside the batch.
            targets: in training, per image ``boxes`` ``[G, 4]`` and ``labels`` ``[G]``.
            extra_candidates: in inference, per image the candidates from other views.

        Returns:
            Per image the input of the other heads: in inference ``boxes``, ``labels``, ``scores``;
            in training ``boxes`` ``[p, 4]``, ``labels`` ``[p]``, ``truth`` ``[p]`` (the index of
            the ground truth) and ``features`` ``[p, ...]`` of the positive samples.
        """
        if not self.training:
            logits, deltas = self.predictor(self.feature_extractor(features, proposals))
            return self.post_processor(logits, deltas, proposals, image_sizes, extra_candidates), {}
        if targets is None:
            raise ValueError("BoxHead: targets are required in training, got None")
        sampled = [self.loss.sample(p, t) for p, t in zip(proposals, targets, strict=True)]
        x = self.feature_extractor(features, [s.boxes for s in sampled])
        logits, deltas = self.predictor(x)
        rows = x.split([len(s.boxes) for s in sampled])
        positives = [s.positives(r) for s, r in zip(sampled, rows, strict=True)]
        return positives, self.loss(logits, deltas, sampled)

    def candidates(self, features: Sequence[Tensor], proposals: list[Tensor]) -> list[Candidates]:
        """Returns per image the boxes and scores that inference chooses from."""
        logits, deltas = self.predictor(self.feature_extractor(features, proposals))
        return self.post_processor.candidates(logits, deltas, proposals)
