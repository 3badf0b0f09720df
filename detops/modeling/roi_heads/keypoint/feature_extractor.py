"""From boxes to feature maps."""

from ..conv_stack import ConvStack


class KeypointRCNNFeatureExtractor(ConvStack):
    """``conv_fcn1``, ``conv_fcn2``...: "Mask R-CNN" (He et al., 2017), section 5."""

    prefix = "conv_fcn"
