"""Box regression targets of Faster R-CNN."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Floats, Function, fold, raw, unfold

CLIP = math.log(1000 / 16)


class EncodeBoxesFunction(Function):
    """Autograd function, differentiable once in boxes and anchors."""

    @staticmethod
    def forward(boxes: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
        """See :func:`encode_boxes`."""
        return _C.encode_boxes_forward(boxes, anchors, weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the inputs."""
        boxes, anchors, ctx.weights = inputs
        ctx.save_for_backward(boxes, anchors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """See csrc/math/box_coder.h."""
        boxes, anchors = ctx.saved_tensors
        return *raw(_C.encode_boxes_backward, grad, boxes, anchors, ctx.weights), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, boxes: Tensor, anchors: Tensor, weights: Sequence[float]
    ) -> tuple[Tensor, int]:
        """Makes one call over all rows."""
        batch = info.batch_size
        rows = [fold(x, d, batch) for x, d in zip((boxes, anchors), in_dims, strict=False)]
        return unfold(EncodeBoxesFunction.run(*rows, weights), batch), 0


class DecodeBoxesFunction(Function):
    """Autograd function, differentiable once in deltas and anchors."""

    @staticmethod
    def forward(deltas: Tensor, anchors: Tensor, weights: Sequence[float], clip: float) -> Tensor:
        """See :func:`decode_boxes`."""
        return _C.decode_boxes_forward(deltas, anchors, weights, clip)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the inputs."""
        deltas, anchors, ctx.weights, ctx.clip = inputs
        ctx.save_for_backward(deltas, anchors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """See csrc/math/box_coder.h."""
        deltas, anchors = ctx.saved_tensors
        grads = raw(_C.decode_boxes_backward, grad, deltas, anchors, ctx.weights, ctx.clip)
        return *grads, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, deltas: Tensor, anchors: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """Makes one call over all rows."""
        batch = info.batch_size
        rows = [fold(x, d, batch) for x, d in zip((deltas, anchors), in_dims, strict=False)]
        return unfold(DecodeBoxesFunction.run(*rows, *rest), batch), 0


_encode_boxes = derivative("encode_boxes", EncodeBoxesFunction.run)
_decode_boxes = derivative("decode_boxes", DecodeBoxesFunction.run)


def encode_boxes(boxes: Tensor, anchors: Tensor, weights: Floats = (1.0, 1.0, 1.0, 1.0)) -> Tensor:
    """Returns the deltas that turn anchors into boxes.

    They are defined in "Faster R-CNN" (Ren et al., 2015), section 3.1.2, equation 2:
    ``(wx (x - xa) / wa, wy (y - ya) / ha, ww log(w / wa), wh log(h / ha))`` with centres (x, y) and
    sizes (w, h).

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        anchors: ``[N, 4]``, likewise.
        weights: factors (wx, wy, ww, wh), positive.

    Returns:
        ``[N, 4]``.

    Raises:
        RuntimeError: wrong shape, dtype, device or weights.

    Example:
        >>> anchor = torch.tensor([[0.0, 0, 10, 10]])
        >>> encode_boxes(torch.tensor([[5.0, 0, 15, 20]]), anchor)
        tensor([[0.5000, 0.5000, 0.0000, 0.6931]])
    """
    return _encode_boxes(boxes, anchors, weights)


def decode_boxes(
    deltas: Tensor,
    anchors: Tensor,
    weights: Floats = (1.0, 1.0, 1.0, 1.0),
    clip: float = CLIP,
) -> Tensor:
    """Inverts :func:`encode_boxes`, for k boxes per anchor.

    Args:
        deltas: ``[N, 4k]``.
        anchors: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        weights: factors (wx, wy, ww, wh), positive.
        clip: upper bound of the logarithms of relative sizes, to prevent overflow.

    Returns:
        ``[N, 4k]`` as k times (x1, y1, x2, y2).

    Raises:
        RuntimeError: wrong shape, dtype, device or weights.

    Example:
        >>> anchor = torch.tensor([[0.0, 0, 10, 10]])
        >>> decode_boxes(torch.tensor([[0.5, 0, 0, 0]]), anchor)
        tensor([[ 5.,  0., 15., 10.]])
    """
    return _decode_boxes(deltas, anchors, weights, clip)


class BoxCoder:
    """:func:`encode_boxes` and :func:`decode_boxes` with fixed weights and clip.

    Example:
        >>> coder = BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
        >>> anchor = torch.tensor([[0.0, 0, 10, 10]])
        >>> deltas = coder.encode(torch.tensor([[5.0, 0, 15, 10]]), anchor)
        >>> deltas
        tensor([[5., 0., 0., 0.]])
        >>> coder.decode(deltas, anchor)
        tensor([[ 5.,  0., 15., 10.]])
    """

    def __init__(self, weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0), clip: float = CLIP) -> None:
        self.weights = tuple(weights)
        self.clip = clip

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Encodes boxes ``[N, 4]`` and anchors ``[N, 4]`` as deltas ``[N, 4]``."""
        return encode_boxes(boxes, anchors, self.weights)

    def decode(self, deltas: Tensor, anchors: Tensor) -> Tensor:
        """Decodes deltas ``[N, 4k]`` and anchors ``[N, 4]`` to boxes ``[N, 4k]``."""
        return decode_boxes(deltas, anchors, self.weights, self.clip)
