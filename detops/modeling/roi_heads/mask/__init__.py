"""The mask head: the shape of each detection."""

from .feature_extractor import MaskRCNNFPNFeatureExtractor
from .mask_head import MaskHead
from .predictor import MaskRCNNC4Predictor, MaskRCNNConv1x1Predictor

__all__ = [
    "MaskHead",
    "MaskRCNNC4Predictor",
    "MaskRCNNConv1x1Predictor",
    "MaskRCNNFPNFeatureExtractor",
]
