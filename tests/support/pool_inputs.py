"""Feature maps for the tests of RoI pooling."""

import torch

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def feature_map(*shape, layout=torch.contiguous_format, dtype=torch.float32, device="cpu"):
    """Returns a random feature map that requires a gradient."""
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x.to(device).contiguous(memory_format=layout).requires_grad_()
