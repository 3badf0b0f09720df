# SPDX-License-Identifier: MIT
"""`python -m detops`, and with it `torchrun -m detops`."""

import sys

from .cli import main

sys.exit(main())
