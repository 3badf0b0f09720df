"""Many RoIs, boxes, images or rows: arguments or results have more than 2^31 elements.

Each op gets many copies of its call in raw_calls.py. The results of the last copy must equal those
of a single one. The tests of some thousand elements always run. The large ones need up to 50 GiB
and an hour; they run if DETOPS_LARGE=1 is set and the memory is free.
"""

import os

import pytest
import torch
from calls import kernel_ops
from fuzz.draw import bases, sketch_of
from test_large import ELEMENTS, needs
from torch.utils._pytree import tree_leaves

import detops
from detops.bench.memory import peak_resident, reset_peak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(detops._C.emulated, reason="of CPUs"),
]
LARGE = pytest.mark.skipif(
    not os.environ.get("DETOPS_LARGE"), reason="takes up to 50 GiB: make large"
)
# Size names of the contracts: RoIs first, then images, boxes, rows or points.
NUMBERS = ("K", "B", "N", "outputs", "P", "...")
# These ops compare all pairs of a list.
QUADRATIC = ("nms", "weighted_box_fusion")


def tensors_of(op):
    """Returns the size names of each tensor in the op's call."""
    sizes = sketch_of(op).tensors
    given = [name for name, x in bases()[op].items() if isinstance(x, torch.Tensor)]
    return {name: [d.size for d in sizes[name].shapes[-1]] for name in given if name in sizes}


def number_of(op):
    """Returns the name of the size to enlarge, or None."""
    counted = {size for sizes in tensors_of(op).values() for size in sizes}
    return next((name for name in NUMBERS if name in counted), None)


OPS = [
    op for op in sorted(kernel_ops()) if number_of(op) and not any(name in op for name in QUADRATIC)
]


def call(op, args):
    found = tree_leaves(getattr(torch.ops.detops, op)(**args))
    return [t for t in found if isinstance(t, torch.Tensor)]


def halved(op):
    """Returns the call in float16, except RoIs, which begin with the image index."""
    found, sketch = dict(bases()[op]), sketch_of(op)
    for name in tensors_of(op):
        rois = name == "boxes" and number_of(op) == "K"
        if sketch.tensors[name].dtype.startswith(("float", "as", "real")) and not rois:
            found[name] = found[name].half()
    return found


def repeated(op, args, times):
    """Repeats the call. Gradients are zero except in the last copy, since some are summed."""
    many, number = dict(args), number_of(op)
    for name, sizes in tensors_of(op).items():
        x = args[name]
        if number in sizes:
            at = sizes.index(number)
            many[name] = x.repeat([times if d == at else 1 for d in range(x.dim())])
            if name.startswith("grad"):
                size = x.shape[at]
                many[name].narrow(at, 0, size * (times - 1)).zero_()
    if number in args:
        many[number] = times * args[number]
    return many


def rows_of(op, args):
    """Returns the arguments and results that grow with the number of copies."""
    own = [args[name] for name, sizes in tensors_of(op).items() if number_of(op) in sizes]
    once, twice = call(op, args), call(op, repeated(op, args, 2))
    return own + [t for t, more in zip(once, twice, strict=True) if t.shape != more.shape]


def bytes_of(op, args, times):
    """Estimates the memory of a call with ``times`` copies from that of a 64th."""
    part = times // 64 + 1
    before = reset_peak()
    call(op, repeated(op, args, part))
    return (peak_resident() - before) * times // part


@pytest.mark.parametrize("elements", [20_000, pytest.param(ELEMENTS, marks=LARGE)])
@pytest.mark.parametrize("op", OPS)
def test_last_of_many_copies_equals_a_single_one(op, elements):
    most = max(t.numel() for t in rows_of(op, bases()[op]))
    times = elements // most + 1
    # Some ops make a float32 copy, which needs more memory than float32 arguments.
    kinds = halved(op), bases()[op]
    memory, args = min(((bytes_of(op, x, times), x) for x in kinds), key=lambda pair: pair[0])
    needs(memory // 2**30 + 2)
    expected = call(op, args)
    found = call(op, repeated(op, args, times))
    for t, once in zip(found, expected, strict=True):
        if not t.dim():  # a sum
            torch.testing.assert_close(t / times, once, rtol=1e-4, atol=0)
            continue
        differ = [d for d in range(t.dim()) if t.shape[d] != once.shape[d]]
        at = differ[0] if differ else 0
        last = t.narrow(at, t.shape[at] - once.shape[at], once.shape[at])
        # Sums over all copies have another order.
        exact = dict(rtol=0, atol=0) if differ else {}
        torch.testing.assert_close(last, once, equal_nan=True, **exact)
