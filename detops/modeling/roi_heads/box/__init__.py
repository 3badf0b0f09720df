"""The box head: classification and refinement of proposals."""

from .box_head import BoxHead
from .feature_extractor import (
    FPN2MLPFeatureExtractor,
    FPNXconv1fcFeatureExtractor,
    ResNet50Conv5ROIFeatureExtractor,
)
from .predictor import BoxPredictor

__all__ = [
    "BoxHead",
    "BoxPredictor",
    "FPN2MLPFeatureExtractor",
    "FPNXconv1fcFeatureExtractor",
    "ResNet50Conv5ROIFeatureExtractor",
]
