"""The box head: classification and refinement of proposals."""

from .box_head import BoxHead
from .feature_extractor import FPN2MLPFeatureExtractor
from .predictor import FPNPredictor

__all__ = ["BoxHead", "FPN2MLPFeatureExtractor", "FPNPredictor"]
