"""Pairwise overlaps of boxes."""

from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..contract import FLOAT, INTEGER
from ..registration import CONTRACTS, composition, constant, derivative
from ._shared import Function, front, one_by_one, raw
from .box_iou_rotated import box_iou_rotated
from .boxes import ROTATED, box_convert

_kernel = torch.ops.detops.box_iou_forward.default._op
_aligned_kernel = torch.ops.detops.box_iou_aligned_forward.default._op


class BoxIoUFunction(Function):
    """Autograd function, differentiable once in both sets of boxes."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`box_iou` and related overlaps."""
        return _kernel(boxes1, boxes2, kind, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, float], output: Tensor) -> None:
        """Keeps the boxes."""
        boxes1, boxes2, ctx.kind, ctx.eps = inputs
        ctx.save_for_backward(boxes1, boxes2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Sums over the pairs of each box, by one owner in a fixed order."""
        boxes1, boxes2 = ctx.saved_tensors
        return *raw(_C.box_iou_backward, grad, boxes1, boxes2, ctx.kind, ctx.eps), None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        boxes1: Tensor,
        boxes2: Tensor,
        kind: str,
        eps: float,
    ) -> tuple[Tensor, int]:
        """Computes one matrix per batch entry."""
        args = boxes1, boxes2, kind, eps
        return one_by_one(BoxIoUFunction.run, in_dims, info.batch_size, *args)


class AlignedBoxIoUFunction(BoxIoUFunction):
    """Autograd function of matched boxes, differentiable once in both."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`box_iou` and related overlaps."""
        return _aligned_kernel(boxes1, boxes2, kind, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """See csrc/math/overlap.inl."""
        boxes1, boxes2 = ctx.saved_tensors
        grads = raw(_C.box_iou_aligned_backward, grad, boxes1, boxes2, ctx.kind, ctx.eps)
        return *grads, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], boxes1: Tensor, boxes2: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """Adds one dimension of pairs."""
        first, second = move_batch_to_front(info, in_dims, boxes1, boxes2)
        return AlignedBoxIoUFunction.run(first, second, *rest), 0


_pairwise = derivative("box_iou_matrix", BoxIoUFunction.run, raw=_kernel)
_matched = derivative("box_iou_aligned", AlignedBoxIoUFunction.run, raw=_aligned_kernel)


def move_batch_to_front(info: Any, in_dims: tuple[int | None, ...], *boxes: Tensor) -> list[Tensor]:
    """Moves the dimension of vmap to the front of the boxes."""
    return [front(x, dim, info.batch_size) for x, dim in zip(boxes, in_dims, strict=False)]


def broadcast_boxes(boxes1: Tensor, boxes2: Tensor) -> tuple[Tensor, Tensor]:
    """Broadcasts the boxes; the op rejects incompatible shapes."""
    if boxes1.shape[-1:] != boxes2.shape[-1:]:
        return boxes1, boxes2
    # While a graph is traced, sizes may be unknown and must not be compared.
    if not torch.compiler.is_dynamo_compiling():
        if boxes1.shape == boxes2.shape:
            return boxes1, boxes2
        sizes = zip(boxes1.shape[::-1], boxes2.shape[::-1], strict=False)
        if not all(a == b or 1 in (a, b) for a, b in sizes):
            return boxes1, boxes2
    boxes1, boxes2 = torch.broadcast_tensors(boxes1, boxes2)
    return boxes1, boxes2


def _batch_shape(boxes1: Tensor, boxes2: Tensor, kind: str) -> torch.Size:
    """Returns the broadcast shape of the leading dimensions."""
    op = CONTRACTS["box_iou_forward"].names[kind]
    for name, boxes in (("boxes1", boxes1), ("boxes2", boxes2)):
        if boxes.dim() < 2:
            shape = list(boxes.shape)
            raise RuntimeError(f"detops.{op}: {name} must be [..., N, 4], got {shape}")
    try:
        return torch.broadcast_shapes(boxes1.shape[:-2], boxes2.shape[:-2])
    except RuntimeError:
        raise RuntimeError(
            f"detops.{op}: boxes1 and boxes2 must have leading sizes that broadcast, "
            f"got {list(boxes1.shape)} and {list(boxes2.shape)}"
        ) from None


def _overlap(
    boxes1: Tensor,
    boxes2: Tensor,
    kind: str,
    eps: float = 0.0,
    fmt: str = "xyxy",
    aligned: bool = False,
) -> Tensor:
    if not (boxes1.is_floating_point() and boxes2.is_floating_point()):
        return _integer_overlap(boxes1, boxes2, kind, eps, fmt, aligned)
    if fmt != "xyxy":
        boxes1, boxes2 = box_convert(boxes1, fmt, "xyxy"), box_convert(boxes2, fmt, "xyxy")
    if aligned:
        return _matched(*broadcast_boxes(boxes1, boxes2), kind, eps)
    if boxes1.dim() <= 2 and boxes2.dim() <= 2:
        return _pairwise(boxes1, boxes2, kind, eps)
    batch = _batch_shape(boxes1, boxes2, kind)
    first = boxes1.expand(*batch, *boxes1.shape[-2:]).flatten(0, -3)
    second = boxes2.expand(*batch, *boxes2.shape[-2:]).flatten(0, -3)
    matrices = [_pairwise(a, b, kind, eps) for a, b in zip(first, second, strict=True)]
    shape = (*batch, boxes1.size(-2), boxes2.size(-2))
    if not matrices:  # an empty batch is checked, too
        return _pairwise(first.flatten(0, 1), second.flatten(0, 1), kind, eps).view(shape)
    return torch.stack(matrices).reshape(shape)


def _integer_overlap(
    boxes1: Tensor, boxes2: Tensor, kind: str, eps: float, fmt: str, aligned: bool
) -> Tensor:
    exact = [x.to(torch.float64) if x.dtype in INTEGER else x for x in (boxes1, boxes2)]
    if not all(x.dtype in FLOAT for x in exact):
        return _C.box_iou_forward(boxes1, boxes2, kind, eps)  # raises an error that names them
    dtype = torch.promote_types(boxes1.dtype, boxes2.dtype)
    if dtype in INTEGER:
        dtype = torch.get_default_dtype()  # the dtype of a quotient of integers
    overlap = _overlap(exact[0], exact[1], kind, eps, fmt, aligned)
    return overlap.to(torch.promote_types(dtype, torch.float32))


def _dispatch_box_iou(boxes1: Tensor, boxes2: Tensor, fmt: str, mode: str, aligned: bool) -> Tensor:
    contract = CONTRACTS["box_iou"]
    contract.check_keyword("fmt", fmt)
    contract.check_keyword("mode", mode)
    if fmt in ROTATED:
        first, second = (
            x if fmt == "cxcywhr" else box_convert(x, fmt, "cxcywhr") for x in (boxes1, boxes2)
        )
        return box_iou_rotated(first, second, mode=mode, aligned=aligned)
    return _overlap(boxes1, boxes2, mode, fmt=fmt, aligned=aligned)


_box_iou = composition("box_iou", _dispatch_box_iou)
_generalized_box_iou = composition(
    "generalized_box_iou",
    lambda boxes1, boxes2, aligned: _overlap(boxes1, boxes2, "giou", aligned=aligned),
)
_distance_box_iou = composition(
    "distance_box_iou",
    lambda boxes1, boxes2, eps, aligned: _overlap(boxes1, boxes2, "diou", eps, aligned=aligned),
)
_complete_box_iou = composition(
    "complete_box_iou",
    lambda boxes1, boxes2, eps, aligned: _overlap(boxes1, boxes2, "ciou", eps, aligned=aligned),
)
_match_boxes = constant("match_boxes")


def box_iou(
    boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy", mode: str = "iou", aligned: bool = False
) -> Tensor:
    """Computes the intersection over union of every pair, in one pass without temporaries.

    An undefined ratio (0/0, infinite or NaN boxes) is 0, never NaN. Differentiable once in both
    sets of boxes.

    Args:
        boxes1: ``[..., N, 4]`` in pixels, floating or integer.
        boxes2: ``[..., M, 4]`` in pixels, likewise, with leading dimensions that broadcast.
        fmt: format of both, one of ``xyxy``, ``xywh``, ``cxcywh``. Rotated boxes are ``[N, 5]`` as
            ``cxcywhr`` or ``xywhr``, or ``[N, 8]`` as ``xyxyxyxy``; see
            :func:`~detops.box_iou_rotated`.
        mode: ``"iou"``, or ``"iof"`` for the intersection over the area of the box of ``boxes1``.
        aligned: compares each box of ``boxes1`` only with the one at the same position in
            ``boxes2``; both are ``[..., 4]`` with shapes that broadcast.

    Returns:
        ``[..., N, M]``, or ``[...]`` if ``aligned``, in [0, 1]: float64 if one of the inputs is,
        otherwise float32. Two integer inputs count as boxes of the default dtype.

    Raises:
        RuntimeError: wrong shape, dtype or device.
        ValueError: an unknown format or mode.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 5], [8, 8, 12, 12]])
        >>> crowd = torch.tensor([[0.0, 0, 10, 10]])
        >>> box_iou(boxes, crowd, mode="iof")  # how much of each box lies in the crowd
        tensor([[1.0000],
                [0.2500]])
        >>> box_iou(boxes, boxes + 2, aligned=True)  # each box with its own partner
        tensor([0.1765, 0.1429])
    """
    return _box_iou(boxes1, boxes2, fmt, mode, aligned)


def generalized_box_iou(boxes1: Tensor, boxes2: Tensor, aligned: bool = False) -> Tensor:
    """Computes the generalized IoU of every pair of boxes.

    It is the IoU minus the fraction of the enclosing box that neither box covers: "Generalized
    Intersection over Union" (Rezatofighi et al., 2019), equation 4. Shapes, dtypes, ``aligned`` and
    errors are those of :func:`box_iou`.

    Returns:
        ``[..., N, M]`` in [-1, 1], or ``[...]`` if ``aligned``.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 2, 4], [6, 0, 8, 4]])
        >>> generalized_box_iou(boxes[:1], boxes)
        tensor([[ 1.0000,  0.5000, -0.2500]])
    """
    return _generalized_box_iou(boxes1, boxes2, aligned)


def distance_box_iou(
    boxes1: Tensor, boxes2: Tensor, eps: float = 1e-7, aligned: bool = False
) -> Tensor:
    """Computes the distance IoU of every pair of boxes.

    It is the IoU minus the squared distance of the centres over the squared diagonal of the
    enclosing box: "Distance-IoU Loss" (Zheng et al., 2020), equation 6. Shapes, dtypes, ``aligned``
    and errors are those of :func:`box_iou`.

    Args:
        boxes1: ``[..., N, 4]`` in pixels.
        boxes2: ``[..., M, 4]`` in pixels.
        eps: added to the squared diagonal.
        aligned: compares matched boxes only.

    Returns:
        ``[..., N, M]`` in [-1, 1], or ``[...]`` if ``aligned``.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 2, 4], [6, 0, 8, 4]])
        >>> distance_box_iou(boxes[:1], boxes)
        tensor([[ 1.0000,  0.4688, -0.3125]])
    """
    return _distance_box_iou(boxes1, boxes2, eps, aligned)


def complete_box_iou(
    boxes1: Tensor, boxes2: Tensor, eps: float = 1e-7, aligned: bool = False
) -> Tensor:
    """Computes the complete IoU of every pair of boxes.

    It is the distance IoU minus a term for different aspect ratios: "Distance-IoU Loss" (Zheng et
    al., 2020), equations 8 to 11. The trade-off factor is held constant in the derivative. Shapes,
    dtypes, ``aligned`` and errors are those of :func:`box_iou`.

    Args:
        boxes1: ``[..., N, 4]`` in pixels.
        boxes2: ``[..., M, 4]`` in pixels.
        eps: added to both denominators.
        aligned: compares matched boxes only.

    Returns:
        ``[..., N, M]``, or ``[...]`` if ``aligned``.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 2, 4], [6, 0, 8, 4]])
        >>> complete_box_iou(boxes[:1], boxes)
        tensor([[ 1.0000,  0.4655, -0.3142]])
    """
    return _complete_box_iou(boxes1, boxes2, eps, aligned)


def match_boxes(boxes1: Tensor, boxes2: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the best match in ``boxes2`` for each box of ``boxes1``, without an ``[N, M]`` matrix.

    The result is that of ``box_iou(boxes1, boxes2).max(dim=1)``, with the first of equal overlaps.
    Not differentiable.

    Args:
        boxes1: ``[N, 4]`` in pixels.
        boxes2: ``[M, 4]`` in pixels.

    Returns:
        The IoU ``[N]`` and the index int64 ``[N]``; 0 and -1 if ``boxes2`` is empty.

    Raises:
        RuntimeError: wrong shape, dtype or device.

    Example:
        >>> anchors = torch.tensor([[0.0, 0, 4, 4], [4, 0, 8, 4], [90, 90, 94, 94]])
        >>> match_boxes(anchors, torch.tensor([[5.0, 0, 9, 4], [0, 0, 4, 2]]))
        (tensor([0.5000, 0.6000, 0.0000]), tensor([1, 0, 0]))
    """
    return _match_boxes(boxes1, boxes2)
