# SPDX-License-Identifier: MIT
"""Detectors as files that run elsewhere."""

from .program import program as program
from .to_onnx import onnx as onnx
