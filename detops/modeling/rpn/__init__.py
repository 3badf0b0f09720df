"""The region proposal network."""

from .anchor_generator import AnchorGenerator
from .rpn import RPN, RPNHead

__all__ = ["RPN", "AnchorGenerator", "RPNHead"]
