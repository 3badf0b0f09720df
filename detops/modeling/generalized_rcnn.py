"""The whole network, from images to detections or losses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from .checks import Target, check_images, check_targets
from .convention import Convention
from .image_list import to_image_list
from .rescale import to_batch, to_image
from .views import View


class GeneralizedRCNN(nn.Module):
    """Backbone, region proposals and heads: "Mask R-CNN" (He et al., 2017) and related networks.

    Boxes are (x1, y1, x2, y2) in pixels, x2 and y2 exclusive: a width is x2 - x1, without the + 1
    of older detectors.

    Args:
        backbone: maps ``[N, 3, H, W]`` to levels, finest first.
        rpn: maps levels to proposals and losses.
        roi_heads: maps levels and proposals to detections and losses. If None, ``rpn`` returns the
            detections.
        pixel_mean: subtracted from each channel.
        pixel_std: divisor of each channel.
        to_bgr255: mean and standard deviation are for BGR in 0..255 instead of RGB in 0..1.
        min_size_train: shorter side that images are resized to, chosen at random from several; 0
            keeps the size.
        max_size_train: maximum of the longer side.
        min_size_test: shorter side in inference, a single value.
        max_size_test: maximum of the longer side in inference.
        size_divisibility: H and W of the batch become multiples of it.
        num_classes: number of classes, including background; labels of targets must be smaller.
            None disables that check.
        with_masks: targets must have masks.
        mask_threshold: minimum probability inside a mask; if negative, masks keep values 0 to 255.
        num_keypoints: keypoints that each object of the targets must have.
        convention: determines how images are resized and how boxes are converted to the image.
        views: other versions of an image, whose boxes go through NMS together with its own. Masks
            and keypoints come from the image itself.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> isinstance(model, GeneralizedRCNN), model.num_classes
        (True, 81)
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    if TYPE_CHECKING:
        # The type does not include the mode: a call with targets is typed as training.

        @overload
        def __call__(
            self, images: Sequence[Tensor], targets: None = None
        ) -> list[dict[str, Tensor]]: ...
        @overload
        def __call__(
            self, images: Sequence[Tensor], targets: Sequence[Target]
        ) -> dict[str, Tensor]: ...
        def __call__(self, images: Any, targets: Any = None) -> Any:
            """Runs the hooks and ``forward``."""

    def __init__(
        self,
        *,
        backbone: nn.Module,
        rpn: nn.Module,
        roi_heads: nn.Module | None,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        to_bgr255: bool = False,
        min_size_train: Sequence[int] = (800,),
        max_size_train: int = 1333,
        min_size_test: int = 800,
        max_size_test: int = 1333,
        size_divisibility: int = 0,
        num_classes: int | None = None,
        with_masks: bool = False,
        mask_threshold: float = 0.5,
        num_keypoints: int = 0,
        views: Sequence[View] = (),
        convention: Convention = Convention(),  # noqa: B008
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        # Not in the state_dict: checkpoints of maskrcnn-benchmark do not contain them.
        for name, values in (("pixel_mean", pixel_mean), ("pixel_std", pixel_std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.to_bgr255 = to_bgr255
        self.min_size_train, self.max_size_train = tuple(min_size_train), max_size_train
        self.min_size_test, self.max_size_test = min_size_test, max_size_test
        self.size_divisibility = size_divisibility
        self.num_classes = num_classes
        self.with_masks, self.mask_threshold = with_masks, mask_threshold
        self.num_keypoints = num_keypoints
        self.views = tuple(views)
        self.convention = convention

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[Target]:
        """Computes losses in training and detections in inference, like torchvision's detectors.

        Args:
            images: ``[3, h, w]`` each, RGB in 0..1, of any floating-point dtype; sizes may differ.
            targets: in training, per image ``boxes``, float ``[G, 4]`` in its pixels, and
                ``labels``, int64 ``[G]`` from 1; G may be 0. A mask head needs ``masks``, bool or
                uint8 ``[G, h, w]``; a keypoint head needs ``keypoints``, float ``[G, n, 3]`` as
                (x, y, visibility), with visibility 0 for unlabelled ones. An int ``seed``
                determines the random choices for the image (its size, the samples of the losses);
                without it they use torch's default generators.

        Returns:
            In training, the losses by name. In inference, per image ``boxes`` ``[K, 4]`` in its
            pixels, ``labels`` ``[K]`` and ``scores`` ``[K]``, best first. A mask head adds
            ``masks``, bool ``[K, 1, h, w]``; a keypoint head adds ``keypoints`` ``[K, n, 3]`` as
            (x, y, 1) and ``keypoints_scores`` ``[K, n]``.

        Raises:
            ValueError: images or targets are invalid; the message names the item and its value.
        """
        check_images(images)
        if self.training:
            check_targets(images, targets, self.num_classes, self.with_masks, self.num_keypoints)
        if self.training and targets is not None:
            targets = [_with_generator(target, images[0].device) for target in targets]
            resized = [
                self._prepare(image, target.get("generator"))
                for image, target in zip(images, targets, strict=True)
            ]
        else:
            resized = [self._prepare(image) for image in images]
        if self.training and targets is not None:
            point_keys = ("boxes", "keypoints") if self.num_keypoints else ("boxes",)
            targets = [
                to_batch(target, point_keys, image, resized_image)
                for target, image, resized_image in zip(targets, images, resized, strict=True)
            ]
        batch = to_image_list(resized, self.size_divisibility, across_processes=self.training)
        features = self.backbone(batch.tensors)
        results, losses = self.rpn(features, batch.sizes, targets)
        if self.roi_heads is not None:
            extra_candidates = (
                None
                if self.training or not self.views
                else self._view_candidates(images, batch.sizes)
            )
            results, head_losses = self.roi_heads(
                features, results, batch.sizes, targets, extra_candidates
            )
            losses = losses | head_losses
        if self.training:
            return losses
        return [
            to_image(detection, resized_image, image, self.mask_threshold, self.convention)
            for detection, image, resized_image in zip(results, images, resized, strict=True)
        ]

    def _prepare(self, image: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if self.training:
            min_size, max_size = _choose_size(self.min_size_train, generator), self.max_size_train
        else:
            min_size, max_size = self.min_size_test, self.max_size_test
        return self._resize(image, min_size, max_size)

    def _view_candidates(
        self, images: Sequence[Tensor], sizes: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Returns per image the box candidates of each view, in pixels of images of ``sizes``."""
        heads: Any = self.roi_heads
        candidates_per_image: list[list[Any]] = [[] for _ in images]
        for view in self.views:
            resized = [self._resize(image, view.min_size, view.max_size) for image in images]
            resized = [image.flip(2) for image in resized] if view.mirrored else resized
            batch = to_image_list(resized, self.size_divisibility)
            features = self.backbone(batch.tensors)
            proposals, _ = self.rpn(features, batch.sizes)
            candidates = heads.box.candidates(features, proposals)
            for image_candidates, image_size, view_candidates, view_size in zip(
                candidates_per_image, sizes, candidates, batch.sizes, strict=True
            ):
                image_candidates.append(
                    view_candidates._replace(
                        boxes=view.convert_boxes(image_size, view_candidates.boxes, view_size)
                    )
                )
        return candidates_per_image

    def _resize(self, image: Tensor, min_size: int, max_size: int) -> Tensor:
        return self.convention.resize(image, self._normalise, min_size, max_size)

    def _normalise(self, image: Tensor) -> Tensor:
        image = image.to(self.pixel_mean.dtype)
        if self.to_bgr255:
            image = image.flip(0) * 255
        return (image - self.pixel_mean) / self.pixel_std


def _with_generator(target: Target, device: torch.device) -> Target:
    """Adds a random generator for the image if the target has a seed."""
    if "seed" not in target:
        return target
    return target | {"generator": torch.Generator(device).manual_seed(target["seed"])}


def _choose_size(sizes: Sequence[int], generator: torch.Generator | None) -> int:
    if len(sizes) == 1:
        return sizes[0]
    device = None if generator is None else generator.device
    return sizes[int(torch.randint(len(sizes), (), generator=generator, device=device))]
