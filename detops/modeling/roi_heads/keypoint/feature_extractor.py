"""From boxes to feature maps."""

from ...registry import ROI_KEYPOINT_FEATURE_EXTRACTORS
from ..conv_stack import ConvStack


@ROI_KEYPOINT_FEATURE_EXTRACTORS.register("KeypointRCNNFeatureExtractor")
class KeypointRCNNFeatureExtractor(ConvStack):
    """``conv_fcn1``, ``conv_fcn2``...: "Mask R-CNN" (He et al., 2017), section 5."""

    prefix = "conv_fcn"
