"""The two normalisations of detection backbones."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation with fixed statistics and a fixed affine map: one multiply-add.

    It has no epsilon, like the Caffe2 models whose weights it was made for.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def affine(self) -> tuple[Tensor, Tensor]:
        """Returns the scale and the shift of each channel, ``[C]``."""
        scale = self.weight * self.running_var.rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to the same shape."""
        scale, shift = (t.view(1, -1, 1, 1).to(x.dtype) for t in self.affine())
        return torch.addcmul(shift, x, scale)


def group_norm(channels: int, num_groups: int, dim_per_gp: int, eps: float) -> nn.GroupNorm:
    """Builds "Group Normalization" (Wu and He, 2018), by groups or by channels per group.

    Raises:
        ValueError: the channels do not divide evenly, or not exactly one of the two is positive.
    """
    if (dim_per_gp > 0) == (num_groups > 0):
        raise ValueError(
            "MODEL.GROUP_NORM: expected either NUM_GROUPS or DIM_PER_GP, the other -1, got "
            f"{num_groups} and {dim_per_gp}"
        )
    groups = num_groups if num_groups > 0 else channels // dim_per_gp
    if groups == 0 or channels % groups:
        raise ValueError(
            f"MODEL.GROUP_NORM: {channels} channels do not divide into {groups} groups"
        )
    return nn.GroupNorm(groups, channels, eps=eps)
