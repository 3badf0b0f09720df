"""Rotated RoIs and gradients for the tests of roi_align_rotated."""

import torch

import detops


def random_rois(images, count, size=40.0, dtype=torch.float32):
    """Returns RoIs at any angle that reach beyond a feature map of `size` on all sides."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(images, (count, 1), generator=generator).to(dtype)
    centre = (torch.rand(count, 2, generator=generator, dtype=dtype) * 1.4 - 0.2) * size
    side = 1 + torch.rand(count, 2, generator=generator, dtype=dtype) * size * 0.6
    angle = torch.rand(count, 1, generator=generator, dtype=dtype) * 800 - 400
    return torch.cat([index, centre, side, angle], dim=1)


def with_gradient(x, *args):
    pooled = detops.roi_align_rotated(x, *args)
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(pooled.shape, generator=generator, dtype=torch.float64).to(pooled)
    return pooled, torch.autograd.grad(pooled, x, grad)[0], grad
