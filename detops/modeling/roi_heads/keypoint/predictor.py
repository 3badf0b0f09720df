"""Predictor of the keypoint head."""

from torch import Tensor, nn
from torch.nn import functional as F

from ...registry import ROI_KEYPOINT_PREDICTOR


@ROI_KEYPOINT_PREDICTOR.register("KeypointRCNNPredictor")
class KeypointRCNNPredictor(nn.Module):
    """A transposed convolution and bilinear upsampling, each to twice the size.

    "Mask R-CNN" (He et al., 2017), section 5.
    """

    scale = 4

    def __init__(self, in_channels: int, num_keypoints: int) -> None:
        super().__init__()
        self.kps_score_lowres = nn.ConvTranspose2d(
            in_channels, num_keypoints, 4, stride=2, padding=1
        )
        nn.init.kaiming_normal_(self.kps_score_lowres.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.kps_score_lowres.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[K, C, M, M]`` to float32 logits ``[K, n, 4 M, 4 M]``."""
        x = self.kps_score_lowres(x).float()
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
