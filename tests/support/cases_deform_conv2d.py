"""Inputs of deformable convolutions of many shapes, and helpers that compare results."""

import torch

LAYOUTS = [torch.contiguous_format, torch.channels_last]

# images, channels, outputs, groups, offset groups, height, width, kernel, stride, padding, dilation
SHAPES = {
    "plain": (2, 6, 4, 1, 1, 7, 9, (3, 3), (1, 1), (1, 1), (1, 1)),
    "uneven window": (1, 5, 3, 1, 1, 11, 8, (2, 3), (2, 1), (0, 2), (1, 2)),
    "groups": (2, 12, 8, 4, 2, 6, 7, (3, 3), (1, 1), (1, 1), (1, 1)),
    "depthwise": (1, 40, 80, 40, 4, 9, 8, (3, 3), (1, 2), (1, 1), (1, 1)),
    "large groups": (1, 144, 6, 2, 3, 5, 6, (1, 2), (1, 1), (0, 1), (1, 1)),
    "offset groups across blocks": (2, 100, 33, 1, 5, 5, 7, (3, 1), (1, 1), (1, 0), (1, 1)),
    "several tiles": (3, 64, 20, 1, 2, 33, 41, (3, 3), (1, 1), (1, 1), (1, 1)),
    "many images": (19, 3, 5, 1, 3, 4, 4, (1, 1), (1, 1), (0, 0), (1, 1)),
    "one pixel": (1, 1, 1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
}  # fmt: skip


def arguments(
    name,
    masked=True,
    biased=True,
    layout=torch.contiguous_format,
    dtype=torch.float32,
    device="cpu",
):
    """Returns (input, offset, mask, weight, bias) and the window (stride, padding, dilation)."""
    n, c, o, groups, offset_groups, *extents, kernel, stride, padding, dilation = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    size = [
        (extents[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    points = offset_groups * kernel[0] * kernel[1]

    def random(*shape):
        x = torch.randn(shape, dtype=torch.double, generator=generator)
        return x.to(dtype).to(device).requires_grad_()

    x = random(n, c, *extents).detach().contiguous(memory_format=layout).requires_grad_()
    offset = (2 * random(n, 2 * points, *size)).detach().requires_grad_()
    mask = random(n, points, *size) if masked else None
    weight, bias = random(o, c // groups, *kernel), random(o) if biased else None
    return (x, offset, mask, weight, bias), (stride, padding, dilation)


def call(function, tensors, window):
    x, offset, mask, weight, bias = tensors
    return function(x, offset, weight, bias, *window, mask)


def gradients(function, tensors, window, grad=None):
    """Returns the output and the gradients of all given tensors."""
    output = call(function, tensors, window)
    if grad is None:
        grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(7))
    return output, *torch.autograd.grad(
        output, [t for t in tensors if t is not None], grad.to(output)
    )


def as_double(tensors):
    return tuple(t if t is None else t.detach().double().cpu().requires_grad_() for t in tensors)


def check_all(ours, expected, eps=1.2e-7, factor=64):
    """Compares tensors within some roundings of their largest element, which bounds the terms."""
    for one, other in zip(ours, expected, strict=True):
        assert one.shape == other.shape
        scale = max(1.0, other.abs().max().item()) if other.numel() else 1.0
        torch.testing.assert_close(
            one.double().cpu(), other.double().cpu(), rtol=0, atol=factor * eps * scale
        )
