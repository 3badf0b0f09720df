"""Convolutions fused with the layers after them, in as few passes over memory as possible."""

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import _C
from ...packed import (
    PackedConv2d,
    PackedDeconv2d,
    deconv_to_pointwise,
    depth_to_width,
    has_hooks,
    packable,
)
from .conv_function import (
    MIN_PIXELS,
    Conv2dFunction,
    count_pixels,
    in_arena,
    in_graph,
    supports_function,
    supports_layer,
    supports_winograd,
)
from .norm import FrozenBatchNorm2d


def conv2d(
    conv: nn.Module,
    x: Tensor,
    norm: nn.Module | None = None,
    *,
    relu: bool = False,
    add: Tensor | None = None,
    overwrite: bool = False,
) -> Tensor:
    """Applies a convolution, a normalisation, a sum and a ReLU.

    A frozen normalisation is folded into the weights. If gradients are required, it is folded on
    every call so that gradients reach the weights, and only if there are fewer weights than pixels.
    Otherwise it is folded once. Folded weights are stored outside the module and double its memory.
    They are recomputed if one of their source tensors was replaced or written to, except through
    ``.data``, which cannot be detected. On the CPU, oneDNN then adds and rectifies results before
    it writes them. In an inference graph, folding is part of the graph.

    Other layers, and layers with hooks, are called unchanged.

    Args:
        conv: a convolution, or any other module from a feature map to a feature map.
        x: ``[N, C, H, W]``.
        norm: applied after the convolution.
        relu: apply a ReLU last.
        add: tensor of the result's size, added after the normalisation.
        overwrite: ``add`` is not used elsewhere, so the result may reuse its memory.
    """
    if isinstance(conv, PackedConv2d):
        if norm is None or isinstance(norm, nn.Identity):  # already folded
            return conv(x, add, relu)
        return _add_and_relu(norm(conv(x)), relu, add)
    if isinstance(conv, nn.Conv2d) and isinstance(norm, FrozenBatchNorm2d | None):
        if _is_standard(conv, norm):
            is_graph = in_graph()
            needs_grad = _needs_grad(conv, x, add)
            # A graph must work for any number of pixels, so it must not branch on x.numel().
            if not (is_graph or needs_grad) and x.numel() > 0:
                return _convolve_fused(conv, x, norm, relu, add, overwrite)
            if needs_grad and not is_graph:
                _FOLDED_CACHE.pop(conv, None)
                if supports_function(conv, x, add):
                    return _convolve_with_grad(conv, x, norm, relu, add)
            if not needs_grad or _more_pixels_than_weights(conv, x):
                return _add_and_relu(_convolve(conv, x, *_fold(conv, norm)), relu, add)
    return _add_and_relu(conv(x) if norm is None else norm(conv(x)), relu, add)


def deconv2d(deconv: nn.Module, x: Tensor) -> Tensor | None:
    """Computes a transposed 2x2 convolution with stride 2 and a ReLU as one product per pixel.

    Args:
        deconv: a transposed convolution, or any other module.
        x: ``[N, C, H, W]``.

    Returns:
        ``[N, O, H, 4 W]``, to be rearranged by :func:`width_to_space`; None for other modules, and
        if PyTorch's is to be called.
    """
    if isinstance(deconv, PackedDeconv2d):
        return depth_to_width(deconv.conv(x, relu=True))
    if type(deconv) is nn.ConvTranspose2d and packable(deconv):
        needs_grad = _needs_grad(deconv, x, None)
        if needs_grad and not in_graph() and supports_layer(deconv, x):
            weight, bias = deconv_to_pointwise(deconv.weight, deconv.bias)
            return depth_to_width(Conv2dFunction.apply(x, weight, bias, None, (0, 0), True))
    return None


# Internal ops of PyTorch that compiled models use.
ONEDNN = torch.ops.mkldnn


class _Folded(NamedTuple):
    weight: Tensor
    bias: Tensor | None
    packed: Tensor | None  # the weight in oneDNN's opaque layout, or in Winograd's
    winograd: bool
    # Aliases keep the memory alive: no other tensor can get the same address.
    sources: list[Tensor]
    versions: list[int]
    dtype: torch.dtype

    def matches(self, sources: list[Tensor], dtype: torch.dtype, winograd: bool) -> bool:
        return (
            self.dtype == dtype
            and self.winograd == winograd
            and self.versions == [t._version for t in sources]
            and all(
                a.data_ptr() == b.data_ptr() and a.dtype == b.dtype and a.stride() == b.stride()
                for a, b in zip(self.sources, sources, strict=True)
            )
        )


# Not attributes of the modules: copies and pickles of modules must not contain them.
_FOLDED_CACHE: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()


def _is_standard(conv: nn.Conv2d, norm: FrozenBatchNorm2d | None) -> bool:
    """Returns whether the layers are standard ones without hooks."""
    hooked = has_hooks(conv) or (norm is not None and has_hooks(norm))
    is_zero_padded = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return type(conv) is nn.Conv2d and is_zero_padded and not hooked


def _more_pixels_than_weights(conv: nn.Conv2d, x: Tensor) -> bool:
    # Imported here: it loads SymPy, which takes 0.4 s and is not needed in inference.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    pixels = count_pixels(x) // math.prod(conv.stride)
    return guard_or_false(pixels > conv.weight[0].numel())


def _needs_grad(conv: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, add: Tensor | None) -> bool:
    """Returns whether autograd records the result; an exported graph is for inference."""
    tensors = (x, add, conv.weight, conv.bias)
    requires_grad = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in tensors
    )
    return requires_grad and not torch.compiler.is_exporting()


def _convolve_with_grad(
    conv: nn.Conv2d, x: Tensor, norm: FrozenBatchNorm2d | None, relu: bool, add: Tensor | None
) -> Tensor:
    if norm is not None and count_pixels(x) < MIN_PIXELS:
        # Scaling the result takes fewer multiplications than scaling the weights.
        y = Conv2dFunction.apply(x, conv.weight, conv.bias, None, conv.padding, False)
        return _add_and_relu(norm(y), relu, add)
    y = Conv2dFunction.apply(x, *_fold(conv, norm), add, conv.padding, relu)
    return y


def _fold(conv: nn.Conv2d, norm: FrozenBatchNorm2d | None) -> tuple[Tensor, Tensor | None]:
    if norm is None:
        return conv.weight, conv.bias
    scale, shift = norm.affine()
    bias = shift if conv.bias is None else shift + scale * conv.bias
    return conv.weight * scale.view(-1, 1, 1, 1), bias


def _convolve(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)


def _add_and_relu(y: Tensor, relu: bool, add: Tensor | None) -> Tensor:
    if add is not None:
        y = y.add_(add) if y.dtype == add.dtype else y + add
    return F.relu_(y) if relu else y


def _convolve_fused(
    conv: nn.Conv2d,
    x: Tensor,
    norm: FrozenBatchNorm2d | None,
    relu: bool,
    add: Tensor | None,
    overwrite: bool,
) -> Tensor:
    device = x.device.type
    dtype = x.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        x = x.to(dtype)
    weight, bias, packed, winograd, *_ = _cached_fold(conv, norm, x, dtype)
    if winograd and packed is not None:
        size: Any = conv.kernel_size
        window: Any = conv.stride, conv.padding, conv.dilation, relu
        with in_arena():
            return _C.packed_conv2d(x, packed, bias, add, conv.out_channels, size, *window)
    if packed is None:
        return _add_and_relu(_convolve(conv, x, weight, bias), relu, add)
    arguments = (packed, bias, conv.padding, conv.stride, conv.dilation, conv.groups)
    # oneDNN fuses the sum only for a single group and equal dtypes.
    if add is None or conv.groups > 1 or add.dtype != dtype:
        unary = "relu" if relu and add is None else "none"
        y = ONEDNN._convolution_pointwise(x, *arguments, unary, [], "")
        return y if add is None else _add_and_relu(y, relu, add)
    post_ops: tuple = ("add", 1.0, "relu" if relu else None, [], None)
    if overwrite:
        return ONEDNN._convolution_pointwise_.binary(add, x, *arguments, *post_ops)
    return ONEDNN._convolution_pointwise.binary(x, add, *arguments, *post_ops)


def _cached_fold(
    conv: nn.Conv2d, norm: FrozenBatchNorm2d | None, x: Tensor, dtype: torch.dtype
) -> _Folded:
    sources = [conv.weight] + ([] if conv.bias is None else [conv.bias])
    if norm is not None:
        sources += [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    # Tensors created in inference mode have no version counter.
    has_versions = not any(t.is_inference() for t in sources)
    cached = _FOLDED_CACHE.get(conv)
    # Winograd only in training, like the rest of the network. Small feature maps reuse weights that
    # were packed for large ones.
    min_pixels = 1 if cached is not None and cached.winograd else MIN_PIXELS
    winograd = conv.training and supports_winograd(conv, x, min_pixels)
    if has_versions and cached is not None and cached.matches(sources, dtype, winograd):
        return cached
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        weight, bias = _fold(conv, norm)
        weight = weight.detach().to(dtype)
        bias = None if bias is None else bias.detach().to(dtype)
        packed = _C.pack_winograd_weight(weight) if winograd else _pack(conv, weight, x)
        versions = [t._version for t in sources] if has_versions else []
    aliases = [t.detach() for t in sources]
    cached = _Folded(weight, bias, packed, winograd, aliases, versions, dtype)
    if has_versions:
        _FOLDED_CACHE[conv] = cached
    return cached


def _pack(conv: nn.Conv2d, weight: Tensor, x: Tensor) -> Tensor | None:
    """Packs the weight for oneDNN; returns None if its fused convolutions are unavailable."""
    available = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if not (available and x.device.type == "cpu"):
        return None
    is_bfloat16 = weight.dtype == torch.bfloat16 and ONEDNN._is_mkldnn_bf16_supported()
    if weight.dtype != torch.float32 and not is_bfloat16:
        return None
    return ONEDNN._reorder_convolution_weight(
        weight, conv.padding, conv.stride, conv.dilation, conv.groups, list(x.shape)
    )
