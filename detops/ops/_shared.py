"""What several ops share."""

from collections.abc import Callable, Sequence
from types import new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd
from torch._functorch.utils import unwrap_dead_wrappers
from torch._prims_common import suggest_memory_format

from ..contract import dtype_name
from ..contract_call import DTYPE_CLASSES, check_list, described
from ..module import Module
from ..registration import CONTRACTS, is_transformed, needs_autograd, through_autograd

Pair = int | tuple[int, int] | list[int]
if TYPE_CHECKING:
    Floats = Sequence[float]
    Tensors = Sequence[Tensor]
    Sizes = Sequence[tuple[int, int]]
else:  # TorchScript takes lists alone
    Floats = list[float]
    Tensors = list[Tensor]
    Sizes = list[tuple[int, int]]


class Function(torch.autograd.Function):
    """An op's derivative: ``forward``, ``setup_context``, ``backward`` and a rule for vmap."""

    # Parts of the arguments of ``forward``, in each of which it is linear: forward mode follows.
    linear_in: tuple[slice, ...] = ()
    _record: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._record = _recorder(cls)
        if "vmap" in cls.__dict__:
            cls.vmap = staticmethod(_of_any_batch(cls.vmap))  # type: ignore[method-assign]
        if cls.linear_in:
            _add_forward_mode(cls)

    @classmethod
    def run(cls, *args: Any) -> Any:
        """``apply`` in less time, and ``forward`` where no gradient is wanted."""
        if is_transformed():
            return cls.apply(*unwrap_dead_wrappers(args))
        if not needs_autograd(args):
            return cls.forward(*args)
        # A tensor that has left its transform still says that it requires a gradient.
        return cls._record(*unwrap_dead_wrappers(args))


def _recorder(function: type[Function]) -> Callable[..., Any]:
    """``apply`` for backward passes alone.

    Transforms of torch.func and forward mode need a ``setup_context``. With one, PyTorch binds the
    arguments to the signature of ``forward``, which takes five times as long as a small op.
    """
    compute, keep = function.forward, function.setup_context

    def forward(ctx: Any, *args: Any) -> Any:
        output = compute(*args)
        keep(ctx, args, output)
        return output

    body = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    base = torch.autograd.Function
    twin = new_class(function.__name__, (base,), exec_body=lambda names: names.update(body))
    return super(base, twin).apply  # type: ignore[misc]


def _of_any_batch(vmap: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for vmap of batches without entries, too, which is that of one entry of zeros."""

    def rule(info: Any, in_dims: tuple, *args: Any) -> Any:
        if info.batch_size:
            return vmap(info, in_dims, *args)
        one = (
            x.sum(dim, keepdim=True, dtype=x.dtype)
            if isinstance(x, Tensor) and dim is not None
            else x
            for x, dim in zip(args, in_dims, strict=True)
        )
        outputs, dims = vmap(info._replace(batch_size=1), in_dims, *one)
        if isinstance(outputs, Tensor):
            return outputs.narrow(dims, 0, 0), dims
        each = dims if isinstance(dims, tuple) else (dims,) * len(outputs)
        none = (x if d is None else x.narrow(d, 0, 0) for x, d in zip(outputs, each, strict=True))
        return tuple(none), each

    return rule


def _add_forward_mode(function: type[Function]) -> None:
    keep, parts = function.setup_context, function.linear_in

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        keep(ctx, inputs, output)
        ctx.save_for_forward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]

    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if x is None else x for x in ctx.others]
        terms = []
        for part in parts:
            arguments = list(inputs)
            arguments[part] = tangents[part]
            terms.append(function.run(*arguments))
        return sum(terms[1:], terms[0])

    function.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    function.jvp = staticmethod(jvp)  # type: ignore[method-assign]


class _UndifferentiableFunction(Function):
    """An op without a derivative: a gradient that is asked of it is an error, not lost."""

    @staticmethod
    def forward(op: Any, *args: Any) -> Any:
        with _AutoDispatchBelowAutograd():
            return op(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        name = str(ctx.op).removesuffix(".default").replace(".", "::", 1)
        raise RuntimeError(f"the derivative for {name} is not implemented")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Any, Any]:
        return one_by_one(_UndifferentiableFunction.run, in_dims, info.batch_size, *args)


def raw(op: Any, *args: Any) -> Any:
    """Calls a raw op from a backward pass, which may be differentiated."""
    # Direct calls: "box_iou, 1 box, with a gradient" of `detops bench corners` needs them.
    return _UndifferentiableFunction.run(op, *args) if needs_autograd(args) else op(*args)


def undifferentiable(op: str) -> Callable[..., Any]:
    """The op, for its public function: one whose floating results have no derivative."""
    overload = getattr(torch.ops.detops, op).default
    return through_autograd(op, lambda *args: _UndifferentiableFunction.run(overload, *args))


class PoolingModule(Module):
    """A pooling whose attributes are its arguments."""

    def extra_repr(self) -> str:
        """The arguments."""
        arguments = (a for a in vars(self).items() if a[0] != "training" and a[0][0] != "_")
        return ", ".join(f"{name}={value}" for name, value in arguments)


def as_rois(op: str, boxes: Tensor | list[Tensor], columns: int = 4) -> Tensor:
    """Turns a list of ``[L, columns]``, one per image, into ``[K, 1 + columns]``.

    Leaves anything else to the op.
    """
    if not torch.jit.is_scripting():
        if not isinstance(boxes, (list, tuple)):
            return boxes
        _check_boxes(op, boxes, columns)
    if isinstance(boxes, Tensor):
        return boxes
    wide = torch.float32  # at least: a batch index above 256 has no exact half
    for b in boxes:
        wide = torch.promote_types(wide, b.dtype)
    rois = [
        torch.constant_pad_nd(b if b.dtype == wide else b.to(wide), (1, 0), i)
        for i, b in enumerate(boxes)
    ]
    return rois[0] if len(rois) == 1 else torch.cat(rois)


def _check_boxes(op: str, boxes: list[Tensor], columns: int) -> None:
    if len(boxes) == 0:
        raise ValueError(f"detops.{op}: boxes must hold a tensor for each image, got an empty list")
    accepts, expected = DTYPE_CLASSES["numbers"]
    check_list(op, "boxes", boxes)
    for i, b in enumerate(boxes):
        if b.dim() != 2 or b.size(1) != columns:
            raise ValueError(f"detops.{op}: boxes[{i}] must be [L, {columns}], got {list(b.shape)}")
        if not accepts(b.dtype):
            got = dtype_name(b.dtype)
            raise RuntimeError(f"detops.{op}: boxes[{i}] must be {expected}, got {got}")


def reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    """The losses, their mean, which of nothing is 0 and not NaN, or their sum."""
    CONTRACTS[op].check_keyword("reduction", reduction)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" and loss.numel() > 0 else loss.sum()


def as_pair(size: Pair) -> tuple[int, int]:
    """Returns ``(height, width)`` from one number or two. Leaves anything else to the op."""
    # TorchScript handles a tuple or a list, but not a value that may be either.
    if isinstance(size, tuple):
        return size if len(size) == 2 else _left_to_the_op(size)
    if isinstance(size, list):
        return (size[0], size[1]) if len(size) == 2 else _left_to_the_op(size)
    return size, size


def _left_to_the_op(size: Pair) -> tuple[int, int]:
    if not torch.jit.is_scripting():
        return size, size  # type: ignore[return-value]
    raise ValueError("detops: a size must be one integer or two")


def two_of(op: str, name: str, expected: str, values: Any) -> tuple[Any, Any]:
    """Returns both values of a pair.

    Public functions call it for anything but a tuple of two, which TorchScript has no other way to
    unpack.
    """
    try:
        first, second = values
    except Exception:
        got = described(values)
        raise ValueError(f"detops.{op}: {name} must be {expected}, got {got}") from None
    return first, second


def memory_format(input: Tensor) -> Any:
    """The layout that the kernels give to what they make of ``input``: one rule for both passes.

    It goes by the order of the strides, so a part of a channels_last tensor is channels_last too.
    """
    strides = input.stride()
    if strides[3] < strides[1] or strides[1] == 0:  # the usual cases, in a tenth of the time
        return torch.contiguous_format
    return suggest_memory_format(input)


def in_format(grad: Tensor, layout: Any) -> Tensor:
    """``grad`` as the kernels must see it to give its map this layout."""
    return grad if memory_format(grad) == layout else grad.contiguous(memory_format=layout)


def as_labels(idxs: Tensor) -> Tensor:
    """Integer labels that are equal where ``idxs`` are, which may be floating."""
    if isinstance(idxs, Tensor) and idxs.is_floating_point():
        # ATen has no ``unique`` for other tensors; the op rejects them.
        if idxs.layout == torch.strided and not idxs.is_nested and not idxs.is_meta:
            return torch.unique(idxs, return_inverse=True)[1]
    return idxs


# vmap folds its dimension into the images of a batch, so that one call of the kernel does it all.


def front(x: Tensor, dim: int | None, batch: int) -> Tensor:
    """With the dimension ``dim`` of size ``batch`` as the first; ``None``: the same throughout."""
    return x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)


def fold(x: Tensor, dim: int | None, batch: int) -> Tensor:
    """``[N, ...]`` with the dimension ``dim`` of size ``batch`` on top, to ``[batch * N, ...]``."""
    return front(x, dim, batch).flatten(0, 1)


def unfold(x: Tensor, batch: int) -> Tensor:
    """``[batch * N, ...]`` to ``[batch, N, ...]``."""
    return x.unflatten(0, (batch, -1)) if x.size(0) else x.new_empty(batch, 0, *x.shape[1:])


def one_by_one(run: Callable[..., Any], in_dims: tuple, batch: int, *args: Any) -> tuple[Any, Any]:
    """A rule for vmap of one call after the other: each may have weights of its own."""
    given = list(zip(args, in_dims, strict=True))
    outputs = [
        run(
            *(
                x.select(dim, i) if isinstance(x, Tensor) and dim is not None else x
                for x, dim in given
            )
        )
        for i in range(batch)
    ]
    if isinstance(outputs[0], Tensor):
        return torch.stack(outputs), 0
    together = tuple(torch.stack(each) for each in zip(*outputs, strict=True))
    return together, (0,) * len(together)


def fold_boxes(boxes: Tensor, dim: int | None, batch: int, images: int) -> Tensor:
    """Like :func:`fold`, with batch indices that point into the folded images.

    An index out of range stays one: it must not come to mean an image of the next batch entry.
    """
    first = front(boxes, dim, batch)
    first = first.to(torch.promote_types(first.dtype, torch.float32))
    index, box = first[..., :1], first[..., 1:]
    offset = images * torch.arange(batch, device=first.device).view(-1, 1, 1)
    index = torch.where((index >= 0) & (index < images), index + offset, -1)
    return torch.cat([index, box], dim=-1).flatten(0, 1)
