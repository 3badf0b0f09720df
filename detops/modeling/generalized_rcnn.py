"""Images in, detections or losses out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops import clip_boxes_to_image
from .image_list import to_image_list

Target = dict[str, Any]


class GeneralizedRCNN(nn.Module):
    """Body and pyramid, region proposals, heads: "Mask R-CNN" (He et al., 2017) and its kin.

    Boxes are (x1, y1, x2, y2) in pixels, x2 and y2 exclusive: a width is x2 - x1, without the + 1
    of older detectors.

    Args:
        backbone: ``[N, 3, H, W]`` to levels, finest first.
        rpn: levels to proposals and losses.
        roi_heads: levels and proposals to detections and losses.
        pixel_mean: taken from each channel.
        pixel_std: each channel is divided by it.
        to_bgr255: mean and deviation are meant for BGR in 0..255, not RGB in 0..1.
        min_size_train: shorter side that images are resized to; one of several at random; 0 leaves
            them alone.
        max_size_train: bound of the longer side.
        min_size_test: as in training, one.
        max_size_test: as in training.
        size_divisibility: sides of the batch become multiples of it.
        num_classes: background included; labels of targets must be below. None: not checked.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self,
        *,
        backbone: nn.Module,
        rpn: nn.Module,
        roi_heads: nn.Module,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        to_bgr255: bool = False,
        min_size_train: Sequence[int] = (800,),
        max_size_train: int = 1333,
        min_size_test: int = 800,
        max_size_test: int = 1333,
        size_divisibility: int = 0,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        # Not in the state_dict: checkpoints of the family do not carry them.
        for name, values in (("pixel_mean", pixel_mean), ("pixel_std", pixel_std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.to_bgr255 = to_bgr255
        self.min_size_train, self.max_size_train = tuple(min_size_train), max_size_train
        self.min_size_test, self.max_size_test = min_size_test, max_size_test
        self.size_divisibility = size_divisibility
        self.num_classes = num_classes

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> dict[str, Tensor] | list[Target]:
        """The calling convention of torchvision's detectors.

        Args:
            images: ``[3, h, w]``, RGB in 0..1, sizes may differ.
            targets: in training, per image ``boxes`` float ``[G, 4]`` in its pixels and ``labels``
                int64 ``[G]`` from 1; G may be 0. With a ``seed``, an int, the image's random
                numbers (its size, the samples of the losses) follow from that alone; otherwise
                they are those of torch's default generators.

        Returns:
            In training the losses by name; otherwise per image ``boxes`` ``[K, 4]`` in its pixels,
            ``labels`` ``[K]`` and ``scores`` ``[K]``, best first.

        Raises:
            ValueError: images or targets of another form; names which and what came.
        """
        _check_images(images)
        if self.training:
            _check_targets(images, targets, self.num_classes)
        if self.training and targets is not None:
            targets = [_with_generator(target, images[0].device) for target in targets]
            resized = [
                self._prepare(image, target.get("generator"))
                for image, target in zip(images, targets, strict=True)
            ]
        else:
            resized = [self._prepare(image) for image in images]
        if self.training and targets is not None:
            targets = [
                target | {"boxes": _rescale(target["boxes"], image, small)}
                for target, image, small in zip(targets, images, resized, strict=True)
            ]
        batch = to_image_list(resized, self.size_divisibility, across_processes=self.training)
        features = self.backbone(batch.tensors)
        proposals, rpn_losses = self.rpn(features, batch.sizes, targets)
        found, box_losses = self.roi_heads(features, proposals, batch.sizes, targets)
        if self.training:
            return rpn_losses | box_losses
        for detection, image, small in zip(found, images, resized, strict=True):
            boxes = _rescale(detection["boxes"], small, image)
            detection["boxes"] = clip_boxes_to_image(boxes, (image.shape[1], image.shape[2]))
        return found

    def _prepare(self, image: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Normalises and resizes."""
        if self.to_bgr255:
            image = image.flip(0) * 255
        image = (image - self.pixel_mean) / self.pixel_std
        if self.training:
            small, large = _choose(self.min_size_train, generator), self.max_size_train
        else:
            small, large = self.min_size_test, self.max_size_test
        height, width = image.shape[1:]
        if small == 0:
            return image
        scale = min(small / min(height, width), large / max(height, width))
        size = (max(1, int(height * scale)), max(1, int(width * scale)))
        if size == (height, width):
            return image
        return F.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]


def _with_generator(target: Target, device: torch.device) -> Target:
    """Adds the generator of the image's random numbers, if the target has a seed."""
    if "seed" not in target:
        return target
    return target | {"generator": torch.Generator(device).manual_seed(target["seed"])}


def _choose(sizes: Sequence[int], generator: torch.Generator | None) -> int:
    if len(sizes) == 1:
        return sizes[0]
    device = None if generator is None else generator.device
    return sizes[int(torch.randint(len(sizes), (), generator=generator, device=device))]


def _rescale(boxes: Tensor, source: Tensor, target: Tensor) -> Tensor:
    y, x = (target.shape[i] / source.shape[i] for i in (1, 2))
    return boxes * boxes.new_tensor([x, y, x, y])


def _check_images(images: Sequence[Tensor]) -> None:
    if len(images) == 0:
        raise ValueError("images: expected at least one image, got none")
    for i, image in enumerate(images):
        if image.dim() != 3 or image.size(0) != 3 or not image.is_floating_point():
            raise ValueError(
                f"images[{i}]: expected floating point [3, h, w] in 0..1, got {image.dtype} "
                f"{list(image.shape)}"
            )
        if image.numel() == 0:
            raise ValueError(f"images[{i}]: expected pixels, got {list(image.shape)}")


def _check_targets(
    images: Sequence[Tensor], targets: Sequence[Target] | None, num_classes: int | None
) -> None:
    if targets is None or len(targets) != len(images):
        given = "None" if targets is None else str(len(targets))
        raise ValueError(f"targets: expected one per image ({len(images)}), got {given}")
    for i, target in enumerate(targets):
        for key in ("boxes", "labels"):
            if not isinstance(target.get(key), Tensor):
                raise ValueError(f"targets[{i}]: expected a tensor {key!r}, got {list(target)}")
        boxes, labels = target["boxes"], target["labels"]
        if boxes.dim() != 2 or boxes.size(1) != 4 or not boxes.is_floating_point():
            raise ValueError(
                f"targets[{i}]['boxes']: expected floating point [G, 4], got {boxes.dtype} "
                f"{list(boxes.shape)}"
            )
        if labels.shape != boxes.shape[:1] or labels.dtype != torch.int64:
            raise ValueError(
                f"targets[{i}]['labels']: expected int64 [{len(boxes)}], got {labels.dtype} "
                f"{list(labels.shape)}"
            )
        solid = (boxes[:, 2:] > boxes[:, :2]).all(dim=1) & boxes.isfinite().all(dim=1)
        if not bool(solid.all()):
            bad = int(torch.nonzero(~solid)[0])
            raise ValueError(
                f"targets[{i}]['boxes'][{bad}]: expected x1 < x2 and y1 < y2, "
                f"got {boxes[bad].tolist()}"
            )
        wrong = (labels < 1) | (labels >= (num_classes or 2**62))
        if bool(wrong.any()):
            bad = int(torch.nonzero(wrong)[0])
            bound = "" if num_classes is None else f" and below {num_classes}"
            raise ValueError(
                f"targets[{i}]['labels'][{bad}]: expected at least 1{bound}, got {int(labels[bad])}"
            )
