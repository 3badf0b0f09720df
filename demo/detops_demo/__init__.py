# SPDX-License-Identifier: MIT
"""Weights and photographs of detops's demonstration, which finds them beside this file."""
