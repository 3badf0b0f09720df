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
    fourfold,
    heard,
    packable,
    side_by_side,
)
from .conv_function import (
    LEAST_PIXELS,
    Conv2dFunction,
    in_graph,
    kept_memory,
    pixels_of,
    suits_function,
    suits_pixels,
    suits_winograd,
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
        return _finish(norm(conv(x)), relu, add)
    if isinstance(conv, nn.Conv2d) and isinstance(norm, FrozenBatchNorm2d | None):
        if _plain(conv, norm):
            graph = in_graph()
            differentiated = _differentiated(conv, x, add)
            # A graph must work for any number of pixels, so it must not branch on x.numel().
            if not (graph or differentiated) and x.numel() > 0:
                return _fused(conv, x, norm, relu, add, overwrite)
            if differentiated and not graph:
                _KEPT.pop(conv, None)
                if suits_function(conv, x, add):
                    return _recorded(conv, x, norm, relu, add)
            if not differentiated or _more_pixels_than_weights(conv, x):
                return _finish(_convolve(conv, x, *_fold(conv, norm)), relu, add)
    return _finish(conv(x) if norm is None else norm(conv(x)), relu, add)


def deconv2d(deconv: nn.Module, x: Tensor) -> Tensor | None:
    """Computes a transposed 2x2 convolution with stride 2 and a ReLU as one product per pixel.

    Args:
        deconv: a transposed convolution, or any other module.
        x: ``[N, C, H, W]``.

    Returns:
        ``[N, O, H, 4 W]``, to be rearranged by :func:`in_squares`; None for other modules, and if
        PyTorch's is to be called.
    """
    if isinstance(deconv, PackedDeconv2d):
        return side_by_side(deconv.conv(x, relu=True))
    if type(deconv) is nn.ConvTranspose2d and packable(deconv):
        differentiated = _differentiated(deconv, x, None)
        if differentiated and not in_graph() and suits_pixels(deconv, x):
            weight, bias = fourfold(deconv.weight, deconv.bias)
            return side_by_side(Conv2dFunction.apply(x, weight, bias, None, (0, 0), True))
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

    def holds(self, sources: list[Tensor], dtype: torch.dtype, winograd: bool) -> bool:
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
_KEPT: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()


def _plain(conv: nn.Conv2d, norm: FrozenBatchNorm2d | None) -> bool:
    """Returns whether the layers are standard ones without hooks."""
    hooks = heard(conv) or (norm is not None and heard(norm))
    by_number = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return type(conv) is nn.Conv2d and by_number and not hooks


def _more_pixels_than_weights(conv: nn.Conv2d, x: Tensor) -> bool:
    # Imported here: it loads SymPy, which takes 0.4 s and is not needed in inference.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    pixels = pixels_of(x) // math.prod(conv.stride)
    return guard_or_false(pixels > conv.weight[0].numel())


def _differentiated(conv: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, add: Tensor | None) -> bool:
    """Returns whether autograd records the result; an exported graph is for inference."""
    tensors = (x, add, conv.weight, conv.bias)
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return recorded and not torch.compiler.is_exporting()


def _recorded(
    conv: nn.Conv2d, x: Tensor, norm: FrozenBatchNorm2d | None, relu: bool, add: Tensor | None
) -> Tensor:
    if norm is not None and pixels_of(x) < LEAST_PIXELS:
        # Scaling the result takes fewer multiplications than scaling the weights.
        y = Conv2dFunction.apply(x, conv.weight, conv.bias, None, conv.padding, False)
        return _finish(norm(y), relu, add)
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


def _finish(y: Tensor, relu: bool, add: Tensor | None) -> Tensor:
    if add is not None:
        y = y.add_(add) if y.dtype == add.dtype else y + add
    return F.relu_(y) if relu else y


def _fused(
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
    weight, bias, packed, winograd, *_ = _folded(conv, norm, x, dtype)
    if winograd and packed is not None:
        size: Any = conv.kernel_size
        window: Any = conv.stride, conv.padding, conv.dilation, relu
        with kept_memory():
            return _C.packed_conv2d(x, packed, bias, add, conv.out_channels, size, *window)
    if packed is None:
        return _finish(_convolve(conv, x, weight, bias), relu, add)
    arguments = (packed, bias, conv.padding, conv.stride, conv.dilation, conv.groups)
    # oneDNN fuses the sum only for a single group and equal dtypes.
    if add is None or conv.groups > 1 or add.dtype != dtype:
        unary = "relu" if relu and add is None else "none"
        y = ONEDNN._convolution_pointwise(x, *arguments, unary, [], "")
        return y if add is None else _finish(y, relu, add)
    after: tuple = ("add", 1.0, "relu" if relu else None, [], None)
    if overwrite:
        return ONEDNN._convolution_pointwise_.binary(add, x, *arguments, *after)
    return ONEDNN._convolution_pointwise.binary(x, add, *arguments, *after)


def _folded(
    conv: nn.Conv2d, norm: FrozenBatchNorm2d | None, x: Tensor, dtype: torch.dtype
) -> _Folded:
    sources = [conv.weight] + ([] if conv.bias is None else [conv.bias])
    if norm is not None:
        sources += [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    # Tensors created in inference mode have no version counter.
    countable = not any(t.is_inference() for t in sources)
    kept = _KEPT.get(conv)
    # Winograd only in training, like the rest of the network. Small feature maps reuse weights that
    # were packed for large ones.
    least = 1 if kept is not None and kept.winograd else LEAST_PIXELS
    winograd = conv.training and suits_winograd(conv, x, least)
    if countable and kept is not None and kept.holds(sources, dtype, winograd):
        return kept
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        weight, bias = _fold(conv, norm)
        weight = weight.detach().to(dtype)
        bias = None if bias is None else bias.detach().to(dtype)
        packed = _C.pack_winograd_weight(weight) if winograd else _pack(conv, weight, x)
        versions = [t._version for t in sources] if countable else []
    aliases = [t.detach() for t in sources]
    kept = _Folded(weight, bias, packed, winograd, aliases, versions, dtype)
    if countable:
        _KEPT[conv] = kept
    return kept


def _pack(conv: nn.Conv2d, weight: Tensor, x: Tensor) -> Tensor | None:
    """Packs the weight for oneDNN; returns None if its fused convolutions are unavailable."""
    available = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if not (available and x.device.type == "cpu"):
        return None
    half = weight.dtype == torch.bfloat16 and ONEDNN._is_mkldnn_bf16_supported()
    if weight.dtype != torch.float32 and not half:
        return None
    return ONEDNN._reorder_convolution_weight(
        weight, conv.padding, conv.stride, conv.dilation, conv.groups, list(x.shape)
    )
