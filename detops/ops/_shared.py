"""What several ops share."""

from collections.abc import Callable
from types import new_class
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from .. import _C
from ..contract import FLOAT, dtype_name
from ..contract_call import CLASSES
from ..module import Module
from ..registration import CONTRACTS, in_float32


class Function(torch.autograd.Function):
    """An op's derivative: ``forward``, ``setup_context``, ``backward`` and a rule for vmap.

    Ops call :meth:`run`. It gives what ``apply`` gives, which takes longer than the small calls of
    these ops: it binds its arguments to the signature of ``forward`` each time, and keeps a context
    whether or not there will be a backward pass.

    Results that only the backward pass reads come after the first ``shown``; they have no gradient,
    and :meth:`run` may leave them out. ``forward`` may be a raw op.
    """

    shown: int | None = None

    # What run calls unless torch.compile is tracing. The smallest ops ask for themselves whether it
    # is, since the frame of run takes as long as they compute.
    eager: Callable[..., Any]

    # Parts of the arguments of ``forward``, in each of which it is linear: forward mode follows.
    linear_in: tuple[slice, ...] = ()
    _transformed: type[torch.autograd.Function]
    _compute: Callable[..., Any]
    _recorded: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        compute, keep, shown = cls.forward, cls.setup_context, cls.shown
        if isinstance(compute, OpOverload):
            cls.forward = staticmethod(_function(compute))  # type: ignore[method-assign]
            compute = compute._op
        cls._compute = staticmethod(compute)

        def forward(ctx: Any, *args: Any) -> Any:
            output = compute(*args)
            keep(ctx, args, output)
            return output if shown is None else output[:shown]

        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.mark_non_differentiable(*output[shown:])
            ctx.set_materialize_grads(False)  # no zeros for those
            keep(ctx, inputs, output)

        if shown is not None:
            cls.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]

        if "vmap" in cls.__dict__:
            cls.vmap = staticmethod(_of_any_batch(cls.vmap))  # type: ignore[method-assign]
        # A class of its own: torch.compile takes no function with a rule for forward mode.
        cls._transformed = _with_forward_mode(cls, cls.linear_in) if cls.linear_in else cls
        cls._record(forward)

    @classmethod
    def _record(cls, forward: Callable[..., Any]) -> type[Any]:
        """Makes ``forward`` what :attr:`eager` calls where a backward pass may come.

        Transforms of torch.func need a setup_context; without them a forward that fills the context
        itself is cheaper.
        """
        body = {"forward": staticmethod(forward), "backward": staticmethod(cls.backward)}
        base = torch.autograd.Function
        recorded = new_class(cls.__name__, (base,), exec_body=lambda names: names.update(body))
        cls._recorded = super(base, recorded).apply  # type: ignore[misc]
        cls.eager = _C.runner(cls._compute, cls._recorded, cls._special)
        return recorded

    @classmethod
    def run(cls, *args: Any) -> Any:
        """The op, recorded for a backward pass if one of ``args`` wants a gradient."""
        return (cls._special if is_dynamo_compiling() else cls.eager)(*args)

    @classmethod
    def _in_python(cls, *args: Any) -> Any:
        """What :attr:`eager` does, whatever PyTorch does meanwhile; torch.compile traces it."""
        # Without a rule for it, forward mode is refused, not lost.
        if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return (cls if is_dynamo_compiling() else cls._transformed).apply(*args)
        if is_grad_enabled():
            for x in args:
                if isinstance(x, Tensor) and x.requires_grad:
                    # A tensor that has left its transform of torch.func is not what it seems.
                    if is_dynamo_compiling() or (
                        type(x) is Tensor and is_functorch_wrapped_tensor(x)
                    ):
                        return cls.apply(*args)
                    return cls._recorded(*args)
        return (cls.forward if is_dynamo_compiling() else cls._compute)(*args)

    _special = _in_python


def _function(op: OpOverload) -> Callable[..., Any]:
    """A function for torch.compile to trace; elsewhere ``op._op`` costs a frame of Python less."""
    return lambda *args: op(*args)


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


def _with_forward_mode(
    function: type[Function], linear_in: tuple[slice, ...]
) -> type[torch.autograd.Function]:
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        function.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]

    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if x is None else x for x in ctx.others]
        parts = []
        for part in linear_in:
            arguments = list(inputs)
            arguments[part] = tangents[part]
            parts.append(function.run(*arguments))
        return sum(parts[1:], parts[0])

    names = ("forward", "backward", "vmap", "generate_vmap_rule")
    body = {name: function.__dict__[name] for name in names if name in function.__dict__}
    body |= {"setup_context": staticmethod(setup_context), "jvp": staticmethod(jvp)}
    base = torch.autograd.Function
    return new_class(function.__name__, (base,), exec_body=lambda names: names.update(body))


class OneDtypeFunction(Function):
    """One whose tensors must have one dtype: under autocast, float32 or float64."""

    @classmethod
    def _special(cls, *args: Any) -> Any:
        if torch._C._is_any_autocast_enabled():
            device = args[0].device.type
            if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
                args = tuple(map(in_float32, args))
        return cls._in_python(*args)


class PassesFunction(OneDtypeFunction):
    """The derivative of two raw ops, ``<passes>_forward`` and ``<passes>_backward``.

    The second names what it takes as the first names its arguments and results; ``x_wanted`` is
    whether the argument ``x`` wants a gradient. ``gradients`` are what it calls those of the
    results that are shown. It gives the gradients of the first one's arguments.
    """

    passes: str
    gradients: tuple[str, ...] = ("grad",)

    def __init_subclass__(cls) -> None:
        raw_forward = getattr(torch.ops.detops, f"{cls.passes}_forward").default
        raw_backward = getattr(torch.ops.detops, f"{cls.passes}_backward").default
        inputs = [argument.name for argument in raw_forward._schema.arguments]
        results = [result.name for result in raw_forward._schema.returns]
        takes = [argument.name for argument in raw_backward._schema.arguments]
        kept = [name for name in takes if name in inputs + results]
        saved = [(inputs + results).index(name) for name in kept]
        told = [i for i, name in enumerate(inputs) if f"{name}_wanted" in takes]
        pool = [*cls.gradients, *kept, *(f"{name}_wanted" for name in inputs), None]
        given = [pool.index(name if name in pool else None) for name in takes]

        def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
            both = inputs + output
            ctx.save_for_backward(*(both[i] for i in saved))

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad
            shown = list(grads[: len(cls.gradients)])
            if all(grad is None for grad in shown):
                return (None,) * len(inputs)
            for i, grad in enumerate(shown):
                if grad is None:
                    shown[i] = torch.zeros_like(tensors[kept.index(results[i])])
            pool = (*shown, *tensors, *wanted, None)
            all_grads = list(raw(raw_backward, *(pool[i] for i in given)))
            for i in told:
                all_grads[i] = all_grads[i] if wanted[i] else None
            return tuple(all_grads)

        cls.shown = len(cls.gradients)
        cls.forward = staticmethod(raw_forward)  # type: ignore[method-assign]
        cls.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
        cls.backward = staticmethod(backward)  # type: ignore[method-assign]
        super().__init_subclass__()
        # What PyTorch calls for the ops in the end costs a frame of Python less each.
        recorded = cls._record(_C.forward_pass(raw_forward._op, saved, cls.shown))
        recorded._backward_cls.apply = _C.backward_pass(
            raw_backward._op, len(pool), given, told, backward
        )


class _RawFunction(Function):
    """An op without a derivative: a gradient that is asked of it is an error, not lost."""

    @staticmethod
    def forward(op: Any, *args: Any) -> Any:
        return op(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.op = inputs[0]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        name = str(ctx.op).removesuffix(".default").replace(".", "::", 1)
        raise RuntimeError(f"the derivative for {name} is not implemented")


def raw(op: Any, *args: Any) -> Any:
    """Calls a raw op from where a gradient of its result may be asked for."""
    if not is_grad_enabled() or _are_functorch_transforms_active():
        return op(*args)
    return _RawFunction.run(op, *args)


class PoolingModule(Module):
    """A pooling whose attributes are its arguments."""

    def extra_repr(self) -> str:
        """The arguments."""
        arguments = (a for a in vars(self).items() if a[0] != "training" and a[0][0] != "_")
        return ", ".join(f"{name}={value}" for name, value in arguments)


def as_rois(op: str, boxes: Tensor | list[Tensor] | tuple[Tensor, ...], columns: int = 4) -> Tensor:
    """Turns a list of ``[L, columns]``, one per image, into ``[K, 1 + columns]``.

    Leaves anything else to the op.
    """
    if boxes is None or isinstance(boxes, Tensor):
        return boxes
    if not boxes:
        raise ValueError(f"detops.{op}: boxes must hold a tensor for each image, got an empty list")
    holds, expected = CLASSES["numbers"]
    wide = torch.float32  # at least: a batch index above 256 has no exact half
    for i, b in enumerate(boxes):
        if b.dim() != 2 or b.size(1) != columns:
            raise ValueError(f"detops.{op}: boxes[{i}] must be [L, {columns}], got {list(b.shape)}")
        if not holds(b.dtype):
            got = dtype_name(b.dtype)
            raise RuntimeError(f"detops.{op}: boxes[{i}] must be {expected}, got {got}")
        wide = torch.promote_types(wide, b.dtype)
    rois = [
        torch.constant_pad_nd(b if b.dtype == wide else b.to(wide), (1, 0), i)
        for i, b in enumerate(boxes)
    ]
    return rois[0] if len(rois) == 1 else torch.cat(rois)


def reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    """The losses, their mean, which of nothing is 0 and not NaN, or their sum."""
    CONTRACTS[op].check_word("reduction", reduction)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" and loss.numel() > 0 else loss.sum()


def as_pair(output_size: int | tuple[int, int]) -> tuple[int, int]:
    """An ``(height, width)`` from one number or two."""
    if isinstance(output_size, (tuple, list)):
        height, width = output_size
        return height, width
    return output_size, output_size


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
    if idxs.dtype in FLOAT:
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


def one_by_one(
    run: Callable[..., Tensor], in_dims: tuple, batch: int, *args: Any
) -> tuple[Tensor, int]:
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
    return torch.stack(outputs), 0


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
