# SPDX-License-Identifier: MIT
"""Export of detectors to files for other runtimes."""

from .load import load as load
from .program import program as program
from .pt2 import aoti as aoti
from .pt2 import pt2 as pt2
from .quantize import quantize as quantize
from .to_onnx import onnx as onnx
