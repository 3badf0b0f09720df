"""Feature extractor of the keypoint head."""

from ..conv_stack import ConvStack


class KeypointRCNNFeatureExtractor(ConvStack):
    """Convolutions ``conv_fcn1``...: "Mask R-CNN" (He et al., 2017), section 5."""

    prefix = "conv_fcn"
