"""The heads on regions of interest."""

from .roi_heads import RoIHeads

__all__ = ["RoIHeads"]
