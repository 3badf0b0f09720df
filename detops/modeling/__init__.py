"""The detector: modules built from other modules, and factories that read the config."""

from .build import build_detection_model
from .generalized_rcnn import GeneralizedRCNN

__all__ = ["GeneralizedRCNN", "build_detection_model"]
