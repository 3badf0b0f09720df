# SPDX-License-Identifier: MIT
"""Entry point of `python -m detops` and `torchrun -m detops`."""

import sys

from .cli import main

sys.exit(main())
