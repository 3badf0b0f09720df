# SPDX-License-Identifier: MIT
"""Datasets in the usual formats, generated shapes, augmentation, tiling, loaders."""

from .catalog import load_datasets, open_dataset
from .class_map import read_class_map
from .coco import CocoDetection, LvisDetection, export_coco
from .cvat import CvatDetection
from .detection import DetectionDataset
from .image import ImageError, load_image
from .label_studio import LabelStudioDetection
from .loader import build_train_loader
from .problems import AnnotationError
from .shapes import Shapes
from .tiling import cut_tiles, merge_detections, tile_origins
from .voc import VocDetection
from .yolo import YoloDetection

__all__ = [
    "AnnotationError",
    "CocoDetection",
    "CvatDetection",
    "DetectionDataset",
    "ImageError",
    "LabelStudioDetection",
    "LvisDetection",
    "Shapes",
    "VocDetection",
    "YoloDetection",
    "build_train_loader",
    "cut_tiles",
    "export_coco",
    "load_datasets",
    "load_image",
    "merge_detections",
    "open_dataset",
    "read_class_map",
    "tile_origins",
]
