# SPDX-License-Identifier: MIT
"""Other packages' own names and conventions for what the ops do."""
