"""Feature maps, and RoIs beyond their edges, for the tests of RoI pooling."""

import torch

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def feature_map(*shape, layout=torch.contiguous_format, dtype=torch.float32, device="cpu"):
    """Returns a random feature map that requires a gradient."""
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x.to(device).contiguous(memory_format=layout).requires_grad_()


def map_and_rois(channels, count, dtype, device, layout):
    """Returns a map ``[2, channels, 9, 11]`` that requires a gradient, and RoIs ``[count, 5]``.

    The RoIs have any corners, in pixels. The generator comes last, for further arguments of an op.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, 9, 11, generator=generator)
    low = torch.rand(count, 2, generator=generator) * 22 - 4
    side = torch.rand(count, 2, generator=generator) * 14 + 0.5
    index = torch.arange(count).view(-1, 1) % 2
    rois = torch.cat([index, low, low + side], 1)
    x = x.to(device, dtype).contiguous(memory_format=layout).requires_grad_()
    return x, rois.to(device, dtype), generator
