"""The detector: parts that take built parts, and factories that read the config."""

from .build import build_detection_model
from .generalized_rcnn import GeneralizedRCNN

__all__ = ["GeneralizedRCNN", "build_detection_model"]
