"""Many RoIs, boxes, images or rows: arguments or results have more than 2^31 elements.

Each op gets many copies of its call in raw_calls.py. The results of the last copy must equal those
of a single one. The tests of some thousand elements always run. The large ones need up to 50 GiB
and an hour; they run if DETOPS_LARGE=1 is set and the memory is free.
"""

import os

import pytest
import torch
from calls import kernel_ops
from fuzz.draw import op_sketch
from raw_calls import calls
from test_large import ELEMENTS, require_memory
from torch.utils._pytree import tree_leaves

import detops
from detops.bench.memory import peak_resident, reset_peak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(detops._C.emulated, reason="tests CPU kernels"),
]
LARGE = pytest.mark.skipif(
    not os.environ.get("DETOPS_LARGE"), reason="needs up to 50 GiB: make large"
)
# Size names of the contracts: RoIs first, then images, boxes, rows or points.
REPEATABLE_SIZES = ("K", "B", "N", "outputs", "P", "...")
# These ops compare all pairs of a list.
QUADRATIC_OPS = ("nms", "weighted_box_fusion")


def tensor_sizes(op):
    """Returns the size names of each tensor in the op's call."""
    sizes = op_sketch(op).tensors
    names = [name for name, x in calls()[op].items() if isinstance(x, torch.Tensor)]
    return {name: [d.size for d in sizes[name].shapes[-1]] for name in names if name in sizes}


def repeated_size(op):
    """Returns the name of the size to enlarge, or None."""
    counted = {size for sizes in tensor_sizes(op).values() for size in sizes}
    return next((name for name in REPEATABLE_SIZES if name in counted), None)


OPS = [
    op
    for op in sorted(kernel_ops())
    if repeated_size(op) and not any(name in op for name in QUADRATIC_OPS)
]


def call(op, args):
    found = tree_leaves(getattr(torch.ops.detops, op)(**args))
    return [t for t in found if isinstance(t, torch.Tensor)]


def half_precision_call(op):
    """Returns the call in float16, except RoIs, which begin with the image index."""
    found, sketch = dict(calls()[op]), op_sketch(op)
    for name in tensor_sizes(op):
        rois = name == "boxes" and repeated_size(op) == "K"
        if sketch.tensors[name].dtype.startswith(("float", "as", "real")) and not rois:
            found[name] = found[name].half()
    return found


def repeated(op, args, times):
    """Repeats the call. Gradients are zero except in the last copy, since some are summed."""
    repeated_args, size_name = dict(args), repeated_size(op)
    for name, sizes in tensor_sizes(op).items():
        x = args[name]
        if size_name in sizes:
            dim = sizes.index(size_name)
            repeated_args[name] = x.repeat([times if d == dim else 1 for d in range(x.dim())])
            if name.startswith("grad"):
                size = x.shape[dim]
                repeated_args[name].narrow(dim, 0, size * (times - 1)).zero_()
    if size_name in args:
        repeated_args[size_name] = times * args[size_name]
    return repeated_args


def growing_tensors(op, args):
    """Returns the arguments and results that grow with the number of copies."""
    growing = [args[name] for name, sizes in tensor_sizes(op).items() if repeated_size(op) in sizes]
    single, twice = call(op, args), call(op, repeated(op, args, 2))
    return growing + [t for t, larger in zip(single, twice, strict=True) if t.shape != larger.shape]


def estimate_memory(op, args, times):
    """Estimates the memory of a call with ``times`` copies from that of a 64th."""
    fraction_of_copies = times // 64 + 1
    before = reset_peak()
    call(op, repeated(op, args, fraction_of_copies))
    return (peak_resident() - before) * times // fraction_of_copies


@pytest.mark.parametrize("elements", [20_000, pytest.param(ELEMENTS, marks=LARGE)])
@pytest.mark.parametrize("op", OPS)
def test_last_of_many_copies_equals_a_single_one(op, elements):
    largest = max(t.numel() for t in growing_tensors(op, calls()[op]))
    times = elements // largest + 1
    # Some ops make a float32 copy, which needs more memory than float32 arguments.
    candidates = half_precision_call(op), calls()[op]
    memory, args = min(
        ((estimate_memory(op, x, times), x) for x in candidates), key=lambda pair: pair[0]
    )
    require_memory(memory // 2**30 + 2)
    expected = call(op, args)
    found = call(op, repeated(op, args, times))
    for t, single in zip(found, expected, strict=True):
        if not t.dim():  # a sum
            torch.testing.assert_close(t / times, single, rtol=1e-4, atol=0)
            continue
        growing_dims = [d for d in range(t.dim()) if t.shape[d] != single.shape[d]]
        dim = growing_dims[0] if growing_dims else 0
        last = t.narrow(dim, t.shape[dim] - single.shape[dim], single.shape[dim])
        # Sums over all copies have another order.
        exact = dict(rtol=0, atol=0) if growing_dims else {}
        torch.testing.assert_close(last, single, equal_nan=True, **exact)
