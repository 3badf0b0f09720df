"""From boxes to feature maps."""

from ...registry import ROI_MASK_FEATURE_EXTRACTORS
from ..conv_stack import ConvStack


@ROI_MASK_FEATURE_EXTRACTORS.register("MaskRCNNFPNFeatureExtractor")
class MaskRCNNFPNFeatureExtractor(ConvStack):
    """``mask_fcn1``, ``mask_fcn2``...: "Mask R-CNN" (He et al., 2017), figure 4, right."""

    prefix = "mask_fcn"
