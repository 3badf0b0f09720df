"""Helpers for the tests of ``patch_torchvision``."""

import torch

from detops.compat.torchvision.functions import FUNCTIONS

PATCHED_FUNCTIONS = tuple(FUNCTIONS)
BOXES = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 30, 40]])
SCORES = torch.tensor([0.5, 0.9, 0.1])


def record_ops(function):
    """Returns the result and the names of our ops that ran."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, acc_events=True) as profile:
        result = function()
    names = {e.key for e in profile.key_averages()}
    return result, {n.removeprefix("detops::") for n in names if n.startswith("detops::")}


def random_boxes(count, size=128):
    corner = torch.rand(count, 2) * size * 0.7
    return torch.cat([corner, corner + 2 + torch.rand(count, 2) * size * 0.25], 1)
