"""Detection operations for PyTorch: NMS, RoIAlign and related ops, and a Mask R-CNN family.

Importing the package loads the compiled module ``detops._C`` and registers its ops under
``torch.ops.detops``.
"""

from typing import TYPE_CHECKING

from ._load import load_extension

_C = load_extension()

from . import ops  # noqa: E402
from .compat import maskrcnn_benchmark  # noqa: E402, F401
from .ops import *  # noqa: E402, F403
from .patch import patch_torchvision  # noqa: E402

__version__ = "0.1.0"
__all__ = ["__version__", "patch_torchvision", *ops.__all__]

if TYPE_CHECKING:
    from . import _C as _C
