"""From boxes to feature maps."""

from ..conv_stack import ConvStack


class MaskRCNNFPNFeatureExtractor(ConvStack):
    """``mask_fcn1``, ``mask_fcn2``...: "Mask R-CNN" (He et al., 2017), figure 4, right."""

    prefix = "mask_fcn"
