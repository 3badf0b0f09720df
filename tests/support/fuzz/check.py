"""Checks that hold for every call, whatever its arguments."""

import copy
import ctypes
import logging
import math
import random
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

import detops
from detops.op_table import derivative_kind
from detops.registration import CONTRACTS

from .case import (
    BITS,
    ERRORS,
    SANITIZED,
    TAME,
    Case,
    bytes_of,
    isas,
    map_tensors,
    tensors_of,
    written_by,
)
from .oracles import compare
from .values import fill_between

# None unless the allocator is glibc's.
MALLOPT = getattr(ctypes.CDLL(None), "mallopt", None)
M_PERTURB = -6
# Bytes of fresh memory in the first and second run: 0, and 3.4e38 or NaN.
FILLS = (0x00, 0x7F)
# Phrases of messages about values, which fake tensors lack.
VALUE_MESSAGES = ("batch index", "indices", "level", "positions", "num_objects", "models")
NO_MEMORY = "not enough memory"
# Ops that accept rows in any order, and their arguments with one row per box.
ROWS = {
    "nms": ("boxes", "scores"),
    "batched_nms": ("boxes", "scores", "idxs"),
    "nms_padded": ("boxes", "scores", "idxs"),
    "nms_rotated": ("boxes", "scores"),
    "batched_nms_rotated": ("boxes", "scores", "idxs"),
    "nms_quadri": ("boxes", "scores"),
    "mask_nms": ("masks", "scores"),
}
# Ops with PyTorch matrix products, whose summation order depends on the number of threads.
MATRIX_PRODUCTS = (
    "lltm",
    "mlp",
    "deform_conv",
    "modulated_deform_conv",
    "winograd_conv2d_backward",
)
# Ops in which rounding decides which sample is the largest.
ARGMAX_OPS = ("border_align", "roi_align_max")
# Relative tolerances between instruction sets, and between an op and its oracle.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


# Ops in which the last bit may decide: which sample or pixel is the largest, whether a sample lies
# on the feature map, which box comes next, or on which side of a kink a value lies. In a small bin,
# the last bit of a coordinate is also significant.
ROUNDING_SENSITIVE = (
    *("soft_nms", "matrix_nms", "weighted_box_fusion"),
    *("heatmaps_to_keypoints", "border_align", "ms_deform_attn", "rotated_feature_align"),
    *("roi_", "ps_roi_", "riroi_", "prroi_", "multiscale_roi_", "deform_roi_", "deform_psroi_"),
)
# This logger would report each error of a fake op.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


class Finding(AssertionError):
    """A check that failed."""


def require(condition: Any, what: str) -> None:
    """Raises a Finding if a condition does not hold."""
    if not condition:
        raise Finding(what)


def fill_fresh_memory(byte: int) -> None:
    """Sets the byte that fills fresh memory; needs glibc.malloc.tcache_count=0."""
    if MALLOPT is not None:
        MALLOPT(M_PERTURB, byte ^ 0xFF)


def call(op: str, args: dict[str, Any]) -> Any:
    """Calls the op and returns its result."""
    return getattr(torch.ops.detops, op)(**args)


def outcome(op: str, args: dict[str, Any]) -> Any:
    """Returns the results and written tensors of a call, or the message of its error."""
    written = written_by(op)
    if written:  # keeps memory between elements, and shared memory
        args = copy.deepcopy(args)
    try:
        found = call(op, args)
    except ERRORS as error:
        message = str(error).split("\n")[0]
        if "can't allocate memory" in message:  # the wording of PyTorch
            return NO_MEMORY
        is_clear = "detops" in message and "INTERNAL ASSERT" not in message
        require(is_clear and " failed" not in message, f"{type(error).__name__}: {message[:300]}")
        return message
    return tensors_of(found) + [args[name] for name in written]


def outcome_with(case: Case, isa: str, threads: int, fill: int) -> Any:
    """Returns the outcome for an instruction set, thread count and fill byte of fresh memory."""
    before = torch.get_num_threads()
    detops._C.set_cpu_isa(isa)
    torch.set_num_threads(threads)
    detops._C.limit_grain(1)  # otherwise threads would not share such small loops
    fill_fresh_memory(fill)
    try:
        return outcome(case.op, case.args)
    finally:
        fill_fresh_memory(0xFF)  # disables filling
        detops._C.limit_grain(2**63 - 1)
        torch.set_num_threads(before)
        detops._C.set_cpu_isa("auto")


def require_same_kind(found: Any, other: Any, what: str) -> bool:
    """Requires equal errors, or results of equal sizes, dtypes and layouts.

    Returns whether there are results to compare.
    """
    if any(isinstance(x, str) and NO_MEMORY in x for x in (found, other)):
        return False  # memory that one call had may be missing for the next
    if isinstance(found, str) or isinstance(other, str):
        require(found == other, f"{what}: {_summary(found)} and {_summary(other)}")
        return False
    require(len(found) == len(other), f"{what}: {len(found)} and {len(other)} results")
    for a, b in zip(found, other, strict=True):
        one, two = (f"{t.dtype} {list(t.shape)} {t.stride()}" for t in (a, b))
        require(a.dtype == b.dtype and a.shape == b.shape, f"{what}: {one} and {two}")
        require(a.stride() == b.stride(), f"{what}: {one} and {two}")
    return True


def _summary(found: Any) -> str:
    return found if isinstance(found, str) else f"results of {[list(t.shape) for t in found]}"


def bits(x: Tensor) -> Tensor:
    """Returns the bits of each element."""
    x = x.resolve_neg().resolve_conj().contiguous()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.view(BITS[x.element_size()])


def canonical_nan(x: Tensor) -> Tensor:
    """Gives every NaN the same bits.

    A sum of two NaNs is the first of them, and compilers may swap operands.
    """
    return torch.where(x.isnan(), x.new_tensor(math.nan), x) if x.dtype in TOLERANCES else x


def require_same_bits(found: Any, other: Any, what: str) -> None:
    """Requires bitwise equal results."""
    if not require_same_kind(found, other, what):
        return
    for k, (a, b) in enumerate(zip(found, other, strict=True)):
        if torch.equal(bits(a), bits(b)):  # usually equal, which needs no memory
            continue
        differ = bits(canonical_nan(a)) != bits(canonical_nan(b))
        if differ.any():
            at = tuple(differ.nonzero()[0].tolist())
            raise Finding(f"{what}: result {k} at {list(at)} is {a[at]} and {b[at]}")


def require_close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Requires results that agree within rounding."""
    a, b = found.double(), expected.double()
    require(a.shape == b.shape, f"{what}: {list(a.shape)} and {list(b.shape)}")
    finite = b[b.isfinite()]
    scale = 1 + finite.abs().amax() if finite.numel() else 1
    # A difference of infinities or NaNs is NaN, which is within no tolerance.
    mismatch = (a != b) & ~((a - b).abs() <= tolerance * scale) & ~(a.isnan() & b.isnan())
    if mismatch.any():
        at = tuple(mismatch.nonzero()[0].tolist())
        raise Finding(f"{what}: {a[at].item()} and {b[at].item()} at {at}")


def tolerance(case: Case, found: list[Tensor]) -> float:
    """Returns the tolerance of the narrowest dtype involved."""
    tensors = [*tensors_of(case.args), *found]
    return max((TOLERANCES[t.dtype] for t in tensors if t.dtype in TOLERANCES), default=0.0)


def check_instruction_set(case: Case, isa: str, found: Any, other: Any) -> None:
    """Requires equal decisions, and tame numbers that agree within rounding."""
    what = f"on {isa}"
    if not require_same_kind(found, other, what):
        return
    for k, (a, b) in enumerate(zip(found, other, strict=True)):
        if case.op.startswith(ARGMAX_OPS) and k > 0:
            continue
        if not a.is_floating_point():
            require_same_bits([a], [b], f"{what}, decisions {k}")
        elif case.mood == TAME:
            require_close(b, a, tolerance(case, found), f"{what}, result {k}")


def check_threads(case: Case, found: Any, other: Any) -> None:
    """Requires the same bits for any number of threads, except in matrix products."""
    what = "on two threads"
    if not case.op.startswith(MATRIX_PRODUCTS):
        require_same_bits(found, other, what)
    elif require_same_kind(found, other, what) and case.mood == TAME:
        for k, (a, b) in enumerate(zip(found, other, strict=True)):
            require_close(b, a, tolerance(case, found), f"{what}, result {k}")


def fake_outcome(case: Case) -> Any:
    """Does the same as `outcome` for fake tensors; returns None if sizes depend on values."""
    contract = CONTRACTS[case.op]
    depends_on_values = any(d.size == "?" for line in contract.outputs for d in line.dimensions)
    try:
        if depends_on_values:
            contract.check(
                {k: map_tensors(v, lambda t: t.to("meta")) for k, v in case.args.items()}
            )
            return None
        with FakeTensorMode() as mode:
            args = {k: map_tensors(v, mode.from_tensor) for k, v in case.args.items()}
            found = getattr(torch.ops.detops, case.op)(**args)
            return tensors_of(found) + [args[name] for name in written_by(case.op)]
    except (DynamicOutputShapeException, DataDependentOutputException):
        return None
    except ERRORS as error:
        return str(error).split("\n")[0]


def check_fake(case: Case, found: Any) -> None:
    """Requires fake tensors to give the sizes and messages of real ones."""
    if any(t.is_neg() for t in tensors_of(case.args)):
        return
    fake = fake_outcome(case)
    about_values = isinstance(found, str) and any(word in found for word in VALUE_MESSAGES)
    if isinstance(fake, str):
        if not (about_values and written_by(case.op)):  # buffers are checked after the results
            require_same_kind(found, fake, "eager and fake")
    elif isinstance(found, str):
        require(about_values or NO_MEMORY in found, f"only eager raises: {found}")
    elif fake is not None:
        require(len(found) == len(fake), "eager and fake: different numbers of results")
        for a, b in zip(found, fake, strict=True):
            ours, theirs = ((t.shape, t.dtype, used_strides(t)) for t in (a, b))
            require(ours == theirs, f"eager {ours}, fake {theirs}")


def used_strides(x: Tensor) -> list[int]:
    """Returns the strides that elements depend on; PyTorch's own ops differ in the others."""
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1] if x.numel() else []


def check_float64(case: Case, found: list[Tensor]) -> bool:
    """Requires float64 to agree within rounding; returns whether it accepts the tame numbers."""
    if case.op.startswith(ROUNDING_SENSITIVE) or sum(t.numel() for t in found) > 1_000_000:
        return False

    def to_float64(x: Tensor) -> Tensor:
        return x.resolve_neg().double() if x.dtype in TOLERANCES else x

    expected = outcome(case.op, {k: map_tensors(v, to_float64) for k, v in case.args.items()})
    if isinstance(expected, str):
        return False
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.is_floating_point():
            theirs = theirs.to(ours.dtype)  # values too large for the dtype become infinite
            require_close(
                ours, theirs, tolerance(case, found), f"compared with float64, result {k}"
            )
    return True


def check_gradients(case: Case, isa: str, found: Any) -> None:
    """Requires the same results with gradients, and gradients that match their inputs."""
    if isinstance(found, str) or written_by(case.op) or derivative_kind(case.op) == "-":
        return

    def leaf(x: Tensor) -> Tensor:
        return x.detach().requires_grad_() if x.dtype in TOLERANCES else x

    args = {k: map_tensors(v, leaf) for k, v in case.args.items()}
    results = outcome_with(replace(case, args=args), isa, 1, FILLS[0])
    require(not isinstance(results, str), f"with gradients: {results}")
    differentiable = [t for t in results if t.requires_grad]
    if not differentiable:
        return
    require_same_bits(found, [t.detach() for t in results], "with gradients")
    leaves = [t for t in tensors_of(args) if t.requires_grad]
    try:
        ones = [torch.ones_like(t) for t in differentiable]
        grads = torch.autograd.grad(differentiable, leaves, ones, allow_unused=True)
    except ERRORS as error:
        message = str(error).split("\n")[0]
        require("detops" in message and "INTERNAL" not in message, f"backward: {message[:300]}")
        return
    for x, grad in zip(leaves, grads, strict=True):
        if grad is not None:
            matches = (grad.shape, grad.dtype) == (x.shape, x.dtype)
            require(
                matches, f"the gradient of {x.dtype} {list(x.shape)} is {grad.dtype} {grad.shape}"
            )


def check_order(case: Case, found: Any, rng: random.Random) -> None:
    """Requires that permuted boxes do not change which boxes are kept, and in which order."""
    names = ROWS.get(case.op)
    if names is None or isinstance(found, str):
        return
    scores = case.args["scores"]
    count = len(scores)
    if scores.isnan().any() or len(scores.unique()) != count:
        return
    order = torch.tensor(rng.sample(range(count), count), dtype=torch.int64)
    permuted = {name: x[order] for name in names if (x := case.args[name]) is not None}
    other = outcome(case.op, case.args | permuted)
    require(not isinstance(other, str), f"in another order: {other}")
    kept, kept_of_permuted = (
        x[0][: x[1]] if case.op == "nms_padded" else x[0] for x in (found, other)
    )
    require(
        torch.equal(order[kept_of_permuted], kept), "the order of the boxes changes which are kept"
    )


def check(case: Case) -> bool:
    """Checks a case in every setting; returns whether the op accepted it.

    Raises:
        Finding: a check failed.
    """
    rng = random.Random(case.seed)
    inputs = tensors_of({k: v for k, v in case.args.items() if k not in written_by(case.op)})
    fill_between(inputs, FILLS[0])
    snapshots = [bytes_of(t).clone() for t in inputs]
    first, other = rng.sample(isas(), 2) if len(isas()) > 1 else isas() * 2
    found = outcome_with(case, first, 1, FILLS[0])
    for t, memory in zip(inputs, snapshots, strict=True):
        require(torch.equal(bytes_of(t), memory), "the op modified an input")
    if SANITIZED:  # sanitizers check accesses; a faster build compares the results
        check_gradients(case, first, found)
        outcome_with(case, other, 2, FILLS[1])
        return not isinstance(found, str)
    tame = case.mood == TAME and not isinstance(found, str)
    if tame and case.args.get("reduction") != "mean" and "encode_boxes" not in case.op:
        for t in found:  # a mean of nothing is NaN, and so are logarithms of sides of 0
            require(not t.is_floating_point() or not t.isnan().any(), "NaN from finite values")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_fake(case, found)
    if not isinstance(found, str):  # a view would show later changes of its input
        input_storages = {x.untyped_storage()._cdata for x in inputs}
        found = [t.clone() if t.untyped_storage()._cdata in input_storages else t for t in found]
    check_order(case, found, rng)
    check_gradients(case, first, found)
    if tame:
        compare(case, found, require_close)
        check_float64(case, found)
    check_instruction_set(case, other, found, outcome_with(case, other, 1, FILLS[0]))
    check_threads(case, found, outcome_with(case, first, 2, FILLS[0]))
    fill_between(inputs, FILLS[1])
    require_same_bits(
        found, outcome_with(case, first, 1, FILLS[1]), "with another fill of unused memory"
    )
    return not isinstance(found, str)
