"""Detection operations for PyTorch: NMS, RoIAlign and related ops, and a Mask R-CNN family.

Importing the package loads the compiled module ``detops._C`` and registers its ops under
``torch.ops.detops``.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from ._load import load_extension

_C = load_extension()

from . import ops  # noqa: E402
from .compat import maskrcnn_benchmark  # noqa: E402, F401
from .compat.torchvision import patch_torchvision  # noqa: E402
from .ops import *  # noqa: E402, F403
from .optimization import optimize, release_memory  # noqa: E402

__version__ = "0.2.0"
#: Path for CMake's find_package(detops), like ``torch.utils.cmake_prefix_path`` for Torch.
cmake_prefix_path = str(Path(__file__).parent / "share" / "cmake")
__all__ = [
    "__version__",
    "cmake_prefix_path",
    "optimize",
    "patch_torchvision",
    "release_memory",
    *ops.__all__,
]

if TYPE_CHECKING:
    from . import _C as _C
