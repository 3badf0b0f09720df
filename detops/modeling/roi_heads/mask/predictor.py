"""Predictors of the mask head."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....packed import width_to_space
from ...backbone.conv import deconv2d
from ...registry import ROI_MASK_PREDICTOR


class MaskLogits(nn.Conv2d):
    """A 1x1 convolution with one channel per class that computes only the requested class.

    "Mask R-CNN" (He et al., 2017), section 3: the loss, and the result in inference, use the mask
    of one class only. With the 81 classes of COCO, 80 masks would be computed and discarded.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__(in_channels, num_classes, 1)
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Maps ``[K, C, M, M]`` and a class each, ``[K]``, to ``[K, M, M]``."""
        weight = self.weight.flatten(1)[labels].unsqueeze(2)
        # Pixel by pixel, the order of channels_last; the gradients are in channels_last, too.
        pixels = x.permute(0, 2, 3, 1).flatten(1, 2)
        logits = torch.bmm(pixels, weight) + self.bias[labels].view(-1, 1, 1)  # type: ignore[index]
        # float32 from here on, also under autocast.
        return logits.float().squeeze(2).unflatten(1, x.shape[2:])


@ROI_MASK_PREDICTOR.register("MaskRCNNC4Predictor")
class MaskRCNNC4Predictor(nn.Module):
    """A transposed convolution to twice the size, then logits.

    Args:
        in_channels: channels of the feature maps.
        num_classes: number of classes, including background.
        hidden_channels: channels between the two layers.
    """

    scale = 2

    def __init__(self, in_channels: int, num_classes: int, hidden_channels: int) -> None:
        super().__init__()
        self.conv5_mask = nn.ConvTranspose2d(in_channels, hidden_channels, 2, stride=2)
        nn.init.kaiming_normal_(self.conv5_mask.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.conv5_mask.bias)  # type: ignore[arg-type]
        self.mask_fcn_logits = MaskLogits(hidden_channels, num_classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Maps ``[K, C, M, M]`` and a class each, ``[K]``, to ``[K, 2 M, 2 M]``."""
        pixels = deconv2d(self.conv5_mask, x)
        if pixels is None:
            return self.mask_fcn_logits(F.relu_(self.conv5_mask(x)), labels)
        return width_to_space(self.mask_fcn_logits(pixels, labels).unsqueeze(1)).squeeze(1)


@ROI_MASK_PREDICTOR.register("MaskRCNNConv1x1Predictor")
class MaskRCNNConv1x1Predictor(nn.Module):
    """Logits only, as in :class:`MaskRCNNC4Predictor`; ``hidden_channels`` is ignored."""

    scale = 1

    def __init__(self, in_channels: int, num_classes: int, hidden_channels: int = 0) -> None:
        super().__init__()
        self.mask_fcn_logits = MaskLogits(in_channels, num_classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Maps ``[K, C, M, M]`` and a class each, ``[K]``, to ``[K, M, M]``."""
        return self.mask_fcn_logits(x, labels)
