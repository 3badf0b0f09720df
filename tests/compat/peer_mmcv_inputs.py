"""Inputs and comparison shared by the tests of mmcv functions."""

import torch


def random(*shape, seed=0, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g) * scale


def random_boxes(count, seed=0, integral=False):
    g = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=g) * 40
    boxes = torch.cat([corner, corner + 4 + torch.rand(count, 2, generator=g) * 20], 1)
    return boxes.round() if integral else boxes


def close(ours, expected, tolerance=1e-5):
    torch.testing.assert_close(ours.double(), expected.double(), rtol=tolerance, atol=tolerance)
