# SPDX-License-Identifier: MIT
"""Data sets in COCO format, training augmentation, tiling of large images, loaders."""

from .coco import AnnotationError, CocoDetection, load_datasets
from .image import ImageError, load_image
from .loader import build_train_loader
from .tiling import cut_tiles, merge_detections, tile_origins

__all__ = [
    "AnnotationError",
    "CocoDetection",
    "ImageError",
    "build_train_loader",
    "cut_tiles",
    "load_datasets",
    "load_image",
    "merge_detections",
    "tile_origins",
]
