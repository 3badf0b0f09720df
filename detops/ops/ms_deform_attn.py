"""Multi-scale deformable attention."""

import math
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import Function, fold, raw, unfold


class MSDeformAttnFunction(Function):
    """Autograd function, differentiable once in values, locations and weights."""

    @staticmethod
    def forward(
        value: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
    ) -> Tensor:
        """See :func:`ms_deform_attn`."""
        return _C.ms_deform_attn_forward(
            value, spatial_shapes, level_start_index, sampling_locations, attention_weights
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, Tensor, Tensor]:
        """Computes all three gradients in one pass over the samples."""
        gradients = raw(_C.ms_deform_attn_backward, grad, *ctx.saved_tensors)
        return gradients[0], None, None, *gradients[1:]

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        value: Tensor,
        spatial_shapes: Tensor,
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images, which share their levels."""
        if in_dims[1] is not None or in_dims[2] is not None:
            raise ValueError(
                "detops.ms_deform_attn: vmap over the shapes of levels is not supported"
            )
        batch = info.batch_size
        output = MSDeformAttnFunction.run(
            fold(value, in_dims[0], batch),
            spatial_shapes,
            level_start_index,
            fold(sampling_locations, in_dims[3], batch),
            fold(attention_weights, in_dims[4], batch),
        )
        return unfold(output, batch), 0


_ms_deform_attn = derivative("ms_deform_attn", MSDeformAttnFunction.run)


@torch.fx.wrap
def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
) -> Tensor:
    """Returns weighted sums of bilinear samples from several feature maps, per query and head.

    See "Deformable DETR" (Zhu et al., 2020), equation 3; the projections are not included. The
    shapes below are for N images of S positions in L levels, M heads of D channels, Q queries and P
    points per level. A level is zero outside its border, and NaN and infinite locations count as
    outside. The three floating tensors may have different dtypes. Locations, weights and sums use
    at least float32. Differentiable once.

    Args:
        value: ``[N, S, M, D]``.
        spatial_shapes: int64 ``[L, 2]``, height and width of each level, on the device of
            ``value`` or on the CPU.
        level_start_index: int64 ``[L]``, the position of each level's first pixel, likewise.
        sampling_locations: ``[N, Q, M, L, P, 2]`` as (x, y), from 0 at the outer edge of a level's
            first pixel to 1 at the outer edge of its last.
        attention_weights: ``[N, Q, M, L, P]``.

    Returns:
        ``[N, Q, M * D]`` in the dtype of ``value``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; if the levels are on the CPU, levels that
            extend beyond the S positions (on CUDA they count as zeros) or do not have S in total.

    Example:
        >>> value = torch.arange(6.0).view(1, 6, 1, 1)  # one level of 2 x 3 pixels, one head
        >>> shapes, starts = torch.tensor([[2, 3]]), torch.tensor([0])
        >>> centres = torch.tensor([[1 / 6, 0.25], [5 / 6, 0.75]]).view(1, 1, 1, 1, 2, 2)
        >>> weights = torch.tensor([0.25, 0.75]).view(1, 1, 1, 1, 2)
        >>> ms_deform_attn(value, shapes, starts, centres, weights)  # 0 / 4 + 5 * 3 / 4
        tensor([[[3.7500]]])
    """
    return _ms_deform_attn(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )


@torch.fx.wrap
def _zero_padding(value: Tensor, mask: Tensor | None) -> Tensor:
    return value if mask is None else value.masked_fill(mask[..., None], 0.0)


@torch.fx.wrap
def _sampling_locations(
    reference_points: Tensor, offsets: Tensor, spatial_shapes: Tensor
) -> Tensor:
    points = reference_points[:, :, None, :, None]  # [N, Q, 1, L, 1, 2 or 4]
    if reference_points.size(-1) == 2:
        sizes = spatial_shapes.flip(-1).to(offsets.device)[:, None]  # [L, 1, 2]
        return points + offsets / sizes
    if reference_points.size(-1) == 4:
        return points[..., :2] + offsets / offsets.size(-2) * points[..., 2:] * 0.5
    raise ValueError(
        "detops.MultiScaleDeformableAttention: reference_points must be [N, Q, L, 2] or "
        f"[N, Q, L, 4], got {list(reference_points.shape)}"
    )


class MultiScaleDeformableAttention(Module):
    """The attention of Deformable DETR, including the projections.

    Arguments, initial values and parameter names are those of the paper's code (``MSDeformAttn``),
    so its checkpoints load.

    Args:
        d_model: channels of queries and feature maps.
        n_levels: number of feature maps.
        n_heads: number of heads, a divisor of ``d_model``.
        n_points: samples per query, head and level.

    Raises:
        ValueError: ``n_heads`` does not divide ``d_model``.

    Example:
        >>> attention = MultiScaleDeformableAttention(d_model=32, n_levels=2, n_heads=4)
        >>> shapes, starts = torch.tensor([[8, 8], [4, 4]]), torch.tensor([0, 64])
        >>> query, maps = torch.randn(1, 100, 32), torch.randn(1, 80, 32)
        >>> attention(query, torch.rand(1, 100, 2, 2), maps, shapes, starts).shape
        torch.Size([1, 100, 32])
    """

    def __init__(
        self, d_model: int = 256, n_levels: int = 4, n_heads: int = 8, n_points: int = 4
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads != 0:
            raise ValueError(
                "detops.MultiScaleDeformableAttention: d_model must be divisible by n_heads, got "
                f"{d_model} and {n_heads}"
            )
        self.d_model, self.n_levels = d_model, n_levels
        self.n_heads, self.n_points = n_heads, n_points
        samples = n_heads * n_levels * n_points
        self.sampling_offsets = nn.Linear(d_model, 2 * samples)
        self.attention_weights = nn.Linear(d_model, samples)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Points each head in its own direction, a pixel further per point, with equal weights."""
        for layer in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        angle = torch.arange(self.n_heads, dtype=torch.float32) * (2 * math.pi / self.n_heads)
        direction = torch.stack([angle.cos(), angle.sin()], -1)
        direction = direction / direction.abs().amax(-1, keepdim=True)  # on the unit square
        steps = torch.arange(1, self.n_points + 1, dtype=torch.float32)
        ring = direction[:, None, None] * steps[:, None]
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(ring.expand(-1, self.n_levels, -1, -1).flatten())
        for layer in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        input_flatten: Tensor,
        input_spatial_shapes: Tensor,
        input_level_start_index: Tensor,
        input_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Samples the feature maps around the reference points of each query.

        Args:
            query: ``[N, Q, d_model]``.
            reference_points: ``[N, Q, L, 2]`` as (x, y) in [0, 1], or ``[N, Q, L, 4]`` as boxes
                (cx, cy, w, h); offsets are then in units of half a box.
            input_flatten: ``[N, S, d_model]``, the feature maps, one after the other.
            input_spatial_shapes: int64 ``[L, 2]``, height and width of each.
            input_level_start_index: int64 ``[L]``, the position where each begins.
            input_padding_mask: bool ``[N, S]``, true where a position is padding.

        Returns:
            ``[N, Q, d_model]``.

        Raises:
            ValueError: ``reference_points`` have neither shape.
        """
        images, queries, _ = query.shape
        value = self.value_proj(input_flatten)
        value = _zero_padding(value, input_padding_mask)
        value = value.unflatten(-1, (self.n_heads, -1))
        sample_shape = (images, queries, self.n_heads, self.n_levels, self.n_points)
        offsets = self.sampling_offsets(query).view(*sample_shape, 2)
        weights = (
            self.attention_weights(query).view(*sample_shape[:3], -1).softmax(-1).view(sample_shape)
        )
        locations = _sampling_locations(reference_points, offsets, input_spatial_shapes)
        attended = ms_deform_attn(
            value, input_spatial_shapes, input_level_start_index, locations, weights
        )
        return self.output_proj(attended)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return (
            f"d_model={self.d_model}, n_levels={self.n_levels}, n_heads={self.n_heads}, "
            f"n_points={self.n_points}"
        )
