"""Convolutions together with what follows them, in as few passes over memory as can be."""

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
    """A convolution, its normalisation, a sum and a rectifier.

    A frozen normalisation is folded into the weights. Where gradients are wanted, that happens on
    every call, so that they reach the weights, and only where there are fewer weights than pixels.
    Otherwise it happens once: folded weights are kept beside the module, twice the memory, and made
    anew when one of the tensors they come from is another or was written to (other than through
    ``.data``, which nobody can notice). On the CPU oneDNN then adds and rectifies what it computes
    before it is written. In a graph for inference the folding is part of the graph.

    Any other layer, and any with hooks, is called as it is.

    Args:
        conv: a convolution, or any other module from a map to a map.
        x: ``[N, C, H, W]``.
        norm: applied behind the convolution.
        relu: rectify, last.
        add: of the result's size, added behind the normalisation.
        overwrite: nobody else needs ``add``: the result may take its memory.
    """
    if isinstance(conv, PackedConv2d):
        if norm is None or isinstance(norm, nn.Identity):  # which has been folded
            return conv(x, add, relu)
        return _finish(norm(conv(x)), relu, add)
    if isinstance(conv, nn.Conv2d) and isinstance(norm, FrozenBatchNorm2d | None):
        if _plain(conv, norm):
            graph = in_graph()
            differentiated = _differentiated(conv, x, add)
            # A graph is for any number of pixels: it must not ask.
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
    """A rectified transposed convolution of 2x2 kernels with stride 2 as a product of each pixel.

    Args:
        deconv: a transposed convolution, or any other module.
        x: ``[N, C, H, W]``.

    Returns:
        ``[N, O, H, 4 W]``, for :func:`in_squares` to bring into place; None for other modules,
        and where PyTorch's is to be called.
    """
    if isinstance(deconv, PackedDeconv2d):
        return side_by_side(deconv.conv(x, relu=True))
    if type(deconv) is nn.ConvTranspose2d and packable(deconv):
        differentiated = _differentiated(deconv, x, None)
        if differentiated and not in_graph() and suits_pixels(deconv, x):
            weight, bias = fourfold(deconv.weight, deconv.bias)
            return side_by_side(Conv2dFunction.apply(x, weight, bias, None, (0, 0), True))
    return None


# PyTorch's own, for compiled models; detops' wheels are for one version of PyTorch.
ONEDNN = torch.ops.mkldnn


class _Folded(NamedTuple):
    weight: Tensor
    bias: Tensor | None
    packed: Tensor | None  # the weight in a layout that only oneDNN reads, or Winograd's
    winograd: bool
    # Aliases, which keep the memory: it cannot come to hold another tensor at the same place.
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


# Not attributes of the modules: copies and pickles of these must not carry them.
_KEPT: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()


def _plain(conv: nn.Conv2d, norm: FrozenBatchNorm2d | None) -> bool:
    """Whether the layers are what they look like, and nobody listens to them."""
    hooks = heard(conv) or (norm is not None and heard(norm))
    by_number = conv.padding_mode == "zeros" and not isinstance(conv.padding, str)
    return type(conv) is nn.Conv2d and by_number and not hooks


def _more_pixels_than_weights(conv: nn.Conv2d, x: Tensor) -> bool:
    # With SymPy it takes 0.4 s to import, and inference does without.
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    pixels = pixels_of(x) // math.prod(conv.stride)
    return guard_or_false(pixels > conv.weight[0].numel())


def _differentiated(conv: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, add: Tensor | None) -> bool:
    """Whether autograd records what is computed; an exported graph is for inference."""
    tensors = (x, add, conv.weight, conv.bias)
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    return recorded and not torch.compiler.is_exporting()


def _recorded(
    conv: nn.Conv2d, x: Tensor, norm: FrozenBatchNorm2d | None, relu: bool, add: Tensor | None
) -> Tensor:
    if norm is not None and pixels_of(x) < LEAST_PIXELS:
        # Less to multiply than the weights.
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
    # The sum is fused for one group and dtype alone.
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
    # Tensors made in inference mode do not count how often they are written to.
    countable = not any(t.is_inference() for t in sources)
    kept = _KEPT.get(conv)
    # In training, where the rest of the network takes it, too. Small maps use the large ones'.
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
    """The weight as oneDNN wants it, or None where its fused convolutions cannot be had."""
    available = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if not (available and x.device.type == "cpu"):
        return None
    half = weight.dtype == torch.bfloat16 and ONEDNN._is_mkldnn_bf16_supported()
    if weight.dtype != torch.float32 and not half:
        return None
    return ONEDNN._reorder_convolution_weight(
        weight, conv.padding, conv.stride, conv.dilation, conv.groups, list(x.shape)
    )
