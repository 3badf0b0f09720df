"""Calls ops with invalid arguments, one argument after the other.

This is a separate program, so that a crash ends it and not the tests: the last case that it printed
is the one that crashed. It also prints all other faults; see test_inputs.py.
"""

import contextlib
import math
import resource
import signal
import sys
import warnings

import torch
from fuzz.case import BITS, ERRORS, SANITIZED, map_tensors, tensors_of, written_by
from raw_calls import arguments

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)}, key=str)
# Arguments that an op of the maskrcnn-benchmark family accepts and ignores.
IGNORED_ARGUMENTS = {"columns", "ones"}
# Ops on real numbers that also accept integers.
ACCEPT_INTEGERS = {
    *("box_area", "box_convert", "clip_boxes_to_image", "remove_small_boxes"),
    *("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"),
    *("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"),
}
# Ops that copy bits of any dtype.
ANY_DTYPE = {"gdh", "gdh_forward"}
INTEGER_VALUES = (0, -1, 2**31 - 1, 2**31, 2**63 - 1)
FLOAT_VALUES = (math.nan, math.inf, -1.0)
TIME_LIMIT, MEMORY_LIMIT = (60, None) if SANITIZED else (20, 4 << 30)


def clone_if_possible(tensor):
    """Copies a tensor if possible: PyTorch cannot copy some dtypes."""
    try:
        return tensor.clone()
    except (RuntimeError, NotImplementedError):
        return tensor


def run(op, args):
    """Returns the results of the op and the arguments that it writes."""
    written = written_by(op.__name__)
    args = {k: map_tensors(v, clone_if_possible) if k in written else v for k, v in args.items()}
    return tensors_of(op(**args)) + [args[name] for name in written]


def convert(tensor, dtype):
    """Returns a tensor of ``dtype``, and its values in an accepted dtype or None."""
    if dtype in (torch.quint8, torch.qint8, torch.qint32):
        return torch.quantize_per_tensor(tensor.float(), 1.0, 0, dtype), None
    try:
        converted = tensor.to(dtype)
        return converted, converted.to(tensor.dtype)
    except (RuntimeError, NotImplementedError):
        raw = torch.ones(tensor.shape, dtype=torch.uint8)
        return raw.view(dtype), None


def tensor_kinds(tensor):
    """Yields non-dense tensors and tensors of other shapes, by name."""

    def neg():
        return torch._neg_view(tensor.neg())

    yield "neg", neg
    yield "conj", lambda: torch.complex(tensor.float(), tensor.float()).conj()
    yield "sparse COO", tensor.to_sparse
    yield "sparse CSR", lambda: tensor.flatten(1).to_sparse_csr()
    yield "mkldnn", tensor.to_mkldnn
    for layout in (torch.strided, torch.jagged):
        yield f"nested, {layout}", lambda at=layout: torch.nested.nested_tensor([tensor], layout=at)
    yield "meta", lambda: tensor.to("meta")
    yield "zero", lambda: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype)
    yield "None", lambda: None
    yield "a dimension more", lambda: tensor.unsqueeze(0)
    yield "a dimension less", lambda: tensor.flatten(0, 1)
    yield "no dimension", lambda: tensor.reshape(-1)[0]
    yield "one dimension", lambda: tensor.flatten()
    yield "empty", lambda: tensor[:0]
    yield "narrow", lambda: tensor[..., :1]
    yield "empty at the end", lambda: tensor[..., :0]


class Worker:
    """Runs the cases of one op."""

    def __init__(self, name):
        self.name, self.op = name, getattr(torch.ops.detops, name)
        self.args, self.case = arguments(name), ""
        self.base = run(self.op, self.args)

    def report_fault(self, what):
        """Prints a fault of the case."""
        print(f"wrong: {self.name}, {self.case}: {what}", flush=True)

    def call(self, case, args):
        """Returns the results, or None if the op raises a clear error."""
        self.case = case
        print(f"case: {self.name}, {case}", flush=True)
        signal.alarm(TIME_LIMIT)
        try:
            return run(self.op, args)
        except ERRORS as error:
            message = str(error)
            if "detops" not in message or "INTERNAL ASSERT" in message:
                self.report_fault(f"{type(error).__name__}: {message[:300]}")
        except BaseException as error:
            self.report_fault(repr(error)[:300])
        finally:
            signal.alarm(0)
        return None

    def require_same(self, found, expected, tolerance=0.0):
        """Reports results that differ."""
        for one, other in zip(found, expected, strict=True):
            if one.shape != other.shape:
                return self.report_fault(
                    f"has shape {list(one.shape)}, expected {list(other.shape)}"
                )
            one, other = (t.resolve_neg().to(torch.float64) for t in (one, other))
            close = torch.allclose(one, other, tolerance, tolerance, equal_nan=True)
            if not close:
                return self.report_fault(f"differs by {(one - other).abs().max()}")
        return None

    def check_rejected_or_deterministic(self, case, args):
        """Checks unknown results: two calls agree, and every element is written."""
        found = self.call(case, args)
        if found is None:
            return
        repeated = self.call(case, args)
        self.require_same(found, repeated or [])
        has_extreme_value = any(
            isinstance(v, float) and not math.isfinite(v) for v in args.values()
        )
        has_extreme_value = has_extreme_value or case.endswith("zero")  # boxes of size 0
        if not has_extreme_value and any(t.is_floating_point() and t.isnan().any() for t in found):
            self.report_fault("contains NaN, probably unwritten memory")

    def replace_argument(self, name, change):
        """Returns the arguments with each tensor of one argument changed."""
        return self.args | {name: map_tensors(self.args[name], change)}

    def check_dtypes(self, name):
        """Passes one argument in every dtype."""
        is_floating = tensors_of(self.args[name])[0].is_floating_point()
        for dtype in DTYPES:
            try:
                args = self.replace_argument(name, lambda t, d=dtype: convert(t, d)[0])
            except (RuntimeError, TypeError, NotImplementedError):
                continue  # PyTorch has no such tensor
            found = self.call(f"{name} of {dtype}", args)
            if found is None:
                continue
            if self.name in ANY_DTYPE:
                bits = BITS.get(found[0].element_size(), dtype)
                expected = args[name].view(bits).contiguous().flatten()
                if not torch.equal(found[0].view(bits), expected):
                    self.report_fault("has different bits")
                continue
            accepted = dtype in FLOATS or (self.name in ACCEPT_INTEGERS and dtype in INTEGERS)
            if is_floating and not accepted and name not in IGNORED_ARGUMENTS:
                self.report_fault("was accepted")
            half = dtype in (torch.float16, torch.bfloat16)
            if any(convert(t, dtype)[1] is None for t in tensors_of(self.args[name])):
                self.require_same(found, self.base)
            else:
                roundtrip = self.replace_argument(name, lambda t, d=dtype: convert(t, d)[1])
                expected = self.call(f"{name} of {dtype} and back", roundtrip)
                if expected is None:
                    self.report_fault("rejects the values in an accepted dtype")
                else:
                    self.require_same(found, expected, 2e-2 if half else 1e-5)

    def check_all_in_dtype(self, dtype):
        """Passes all floating tensors in one dtype."""
        floating = [t.is_floating_point() for v in self.args.values() for t in tensors_of(v)]
        if not any(floating):
            return
        changed = {
            k: map_tensors(v, lambda t: t.to(dtype) if t.is_floating_point() else t)
            for k, v in self.args.items()
        }
        found = self.call(f"all of {dtype}", changed)
        if found is None:
            if dtype in FLOATS and self.name != "lltm_backward":  # it requires wide cells
                self.report_fault("was rejected")
            return
        if dtype not in FLOATS:
            if self.name not in ANY_DTYPE | ACCEPT_INTEGERS:
                self.report_fault("was accepted")
            return  # see dtypes
        as_float32 = {k: map_tensors(v, lambda t: t.float() if t.is_floating_point() else t)
                for k, v in changed.items()}  # fmt: skip
        exact = dtype in (torch.float32, torch.float64)
        self.require_same(found, run(self.op, as_float32), 1e-4 if exact else 3e-2)

    def check_tensor_kinds(self, name):
        """Passes one argument as every kind of tensor."""
        for kind, _ in tensor_kinds(torch.zeros(1)):

            def change(tensor, kind=kind):
                return dict(tensor_kinds(tensor))[kind]()

            try:
                args = self.replace_argument(name, change)
            except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
                continue  # PyTorch has no such tensor
            case = f"{name}, {kind}"
            if kind == "neg":
                found = self.call(case, args)
                if found is not None:
                    self.require_same(found, self.base, 1e-6)
            elif kind in ("conj", "sparse COO", "sparse CSR", "mkldnn", "None") or "nest" in kind:
                if self.call(case, args) is not None and not (
                    name in IGNORED_ARGUMENTS or self.name in ANY_DTYPE or kind == "None"
                ):
                    self.report_fault("was accepted")
            elif kind == "meta":
                found = self.call(case, args)
                if found and not all(t.is_meta for t in found) and name not in IGNORED_ARGUMENTS:
                    self.report_fault("was accepted")
            else:
                self.check_rejected_or_deterministic(case, args)

    def check_numbers(self, name, kind):
        """Replaces the numbers of one argument, one after the other."""
        value = self.args[name]
        for number in FLOAT_VALUES if "float" in kind else INTEGER_VALUES:
            if isinstance(value, list):
                for i in range(len(value)):
                    changed = [number if i == j else v for j, v in enumerate(value)]
                    self.check_rejected_or_deterministic(
                        f"{name} = {changed}", self.args | {name: changed}
                    )
                for changed in ([], [number], value + [number]):
                    self.check_rejected_or_deterministic(
                        f"{name} = {changed}", self.args | {name: changed}
                    )
            else:
                self.check_rejected_or_deterministic(
                    f"{name} = {number}", self.args | {name: number}
                )

    def check_all(self):
        """Runs all cases."""
        for argument in self.op.default._schema.arguments:
            name, kind = argument.name, str(argument.type)
            if name not in self.args:
                raise AssertionError(f"raw_calls.py has no {name} for {self.name}")
            if "Tensor" in kind:
                self.check_dtypes(name)
                self.check_tensor_kinds(name)
            elif "int" in kind.lower() or "float" in kind:
                self.check_numbers(name, kind)
            elif kind == "str":
                self.check_rejected_or_deterministic(f"{name} = ''", self.args | {name: ""})
            elif kind == "bool":
                negated = not self.args[name]
                self.check_rejected_or_deterministic(
                    f"{name} = {negated}", self.args | {name: negated}
                )
        for dtype in DTYPES:
            with contextlib.suppress(RuntimeError, TypeError):
                self.check_all_in_dtype(dtype)
        on_meta = {k: map_tensors(v, lambda t: t.to("meta")) for k, v in self.args.items()}
        found = self.call("all on meta", on_meta)
        if found and any(a.shape != b.shape for a, b in zip(found, self.base, strict=True)):
            self.report_fault("has other sizes on meta than on the CPU")


def main():
    """Tests the ops of the command line."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # New tensors contain NaN, which reveals elements that an op leaves unwritten.
    torch.use_deterministic_algorithms(True)
    if MEMORY_LIMIT is not None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in sys.argv[1:]:
        Worker(name).check_all()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
