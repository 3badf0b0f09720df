"""RetinaNet: a one-stage detector in place of the region proposal network."""

from .retinanet import RetinaNet, RetinaNetHead

__all__ = ["RetinaNet", "RetinaNetHead"]
