# SPDX-License-Identifier: MIT
"""Weights and photographs of the detops demo, which locates them next to this file."""
