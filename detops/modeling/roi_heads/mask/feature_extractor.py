"""Feature extractor of the mask head."""

from ..conv_stack import ConvStack


class MaskRCNNFPNFeatureExtractor(ConvStack):
    """Convolutions ``mask_fcn1``...: "Mask R-CNN" (He et al., 2017), figure 4, right."""

    prefix = "mask_fcn"
