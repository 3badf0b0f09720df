"""The keypoint head: named points of each detection."""

from .feature_extractor import KeypointRCNNFeatureExtractor
from .keypoint_head import KeypointHead
from .predictor import KeypointRCNNPredictor

__all__ = ["KeypointHead", "KeypointRCNNFeatureExtractor", "KeypointRCNNPredictor"]
