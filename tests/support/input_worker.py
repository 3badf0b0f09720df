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
LEFT_ALONE = {"columns", "ones"}
# Ops on real numbers that also accept integers.
TAKE_INTEGERS = {
    *("box_area", "box_convert", "clip_boxes_to_image", "remove_small_boxes"),
    *("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou"),
    *("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"),
}
# Ops that copy bits of any dtype.
ANY_DTYPE = {"gdh", "gdh_forward"}
NUMBERS = (0, -1, 2**31 - 1, 2**31, 2**63 - 1)
REALS = (math.nan, math.inf, -1.0)
SECONDS, BYTES = (60, None) if SANITIZED else (20, 4 << 30)


def copied(tensor):
    """Copies a tensor if possible: PyTorch cannot copy some dtypes."""
    try:
        return tensor.clone()
    except (RuntimeError, NotImplementedError):
        return tensor


def run(op, args):
    """Returns the results of the op and the arguments that it writes."""
    written = written_by(op.__name__)
    args = {k: map_tensors(v, copied) if k in written else v for k, v in args.items()}
    return tensors_of(op(**args)) + [args[name] for name in written]


def made(tensor, dtype):
    """Returns a tensor of ``dtype``, and its values in an accepted dtype or None."""
    if dtype in (torch.quint8, torch.qint8, torch.qint32):
        return torch.quantize_per_tensor(tensor.float(), 1.0, 0, dtype), None
    try:
        converted = tensor.to(dtype)
        return converted, converted.to(tensor.dtype)
    except (RuntimeError, NotImplementedError):
        raw = torch.ones(tensor.shape, dtype=torch.uint8)
        return raw.view(dtype), None


def kinds(tensor):
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
        self.args, self.case = arguments()[name], ""
        self.base = run(self.op, self.args)

    def complain(self, what):
        """Prints a fault of the case."""
        print(f"wrong: {self.name}, {self.case}: {what}", flush=True)

    def call(self, case, args):
        """Returns the results, or None if the op raises a clear error."""
        self.case = case
        print(f"case: {self.name}, {case}", flush=True)
        signal.alarm(SECONDS)
        try:
            return run(self.op, args)
        except ERRORS as error:
            message = str(error)
            if "detops" not in message or "INTERNAL ASSERT" in message:
                self.complain(f"{type(error).__name__}: {message[:300]}")
        except BaseException as error:
            self.complain(repr(error)[:300])
        finally:
            signal.alarm(0)
        return None

    def same(self, found, expected, tolerance=0.0):
        """Reports results that differ."""
        for one, other in zip(found, expected, strict=True):
            if one.shape != other.shape:
                return self.complain(f"{list(one.shape)} for {list(other.shape)}")
            one, other = (t.resolve_neg().to(torch.float64) for t in (one, other))
            close = torch.allclose(one, other, tolerance, tolerance, equal_nan=True)
            if not close:
                return self.complain(f"off by {(one - other).abs().max()}")
        return None

    def refused_or_stable(self, case, args):
        """Checks unknown results: two calls agree, and every element is written."""
        found = self.call(case, args)
        if found is None:
            return
        again = self.call(case, args)
        self.same(found, again or [])
        strange = any(isinstance(v, float) and not math.isfinite(v) for v in args.values())
        strange = strange or case.endswith("zero")  # boxes of size 0
        if not strange and any(t.is_floating_point() and t.isnan().any() for t in found):
            self.complain("NaN, which is what memory that nobody wrote has")

    def replaced(self, name, change):
        """Returns the arguments with each tensor of one argument changed."""
        return self.args | {name: map_tensors(self.args[name], change)}

    def dtypes(self, name):
        """Passes one argument in every dtype."""
        real = tensors_of(self.args[name])[0].is_floating_point()
        for dtype in DTYPES:
            try:
                given = self.replaced(name, lambda t, d=dtype: made(t, d)[0])
            except (RuntimeError, TypeError, NotImplementedError):
                continue  # PyTorch has no such tensor
            found = self.call(f"{name} of {dtype}", given)
            if found is None:
                continue
            if self.name in ANY_DTYPE:
                bits = BITS.get(found[0].element_size(), dtype)
                expected = given[name].view(bits).contiguous().flatten()
                if not torch.equal(found[0].view(bits), expected):
                    self.complain("other bits")
                continue
            taken = dtype in FLOATS or (self.name in TAKE_INTEGERS and dtype in INTEGERS)
            if real and not taken and name not in LEFT_ALONE:
                self.complain("was taken")
            half = dtype in (torch.float16, torch.bfloat16)
            if any(made(t, dtype)[1] is None for t in tensors_of(self.args[name])):
                self.same(found, self.base)
            else:
                known = self.replaced(name, lambda t, d=dtype: made(t, d)[1])
                expected = self.call(f"{name} of {dtype} and back", known)
                if expected is None:
                    self.complain("its values are refused")
                else:
                    self.same(found, expected, 2e-2 if half else 1e-5)

    def all_of(self, dtype):
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
                self.complain("is refused")
            return
        if dtype not in FLOATS:
            if self.name not in ANY_DTYPE | TAKE_INTEGERS:
                self.complain("was taken")
            return  # see dtypes
        back = {k: map_tensors(v, lambda t: t.float() if t.is_floating_point() else t)
                for k, v in changed.items()}  # fmt: skip
        exact = dtype in (torch.float32, torch.float64)
        self.same(found, run(self.op, back), 1e-4 if exact else 3e-2)

    def other_kinds(self, name):
        """Passes one argument as every kind of tensor."""
        for kind, _ in kinds(torch.zeros(1)):

            def change(tensor, kind=kind):
                return dict(kinds(tensor))[kind]()

            try:
                given = self.replaced(name, change)
            except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
                continue  # PyTorch has no such tensor
            case = f"{name}, {kind}"
            if kind == "neg":
                found = self.call(case, given)
                if found is not None:
                    self.same(found, self.base, 1e-6)
            elif kind in ("conj", "sparse COO", "sparse CSR", "mkldnn", "None") or "nest" in kind:
                if self.call(case, given) is not None and not (
                    name in LEFT_ALONE or self.name in ANY_DTYPE or kind == "None"
                ):
                    self.complain("was taken")
            elif kind == "meta":
                found = self.call(case, given)
                if found and not all(t.is_meta for t in found) and name not in LEFT_ALONE:
                    self.complain("was taken")
            else:
                self.refused_or_stable(case, given)

    def numbers(self, name, kind):
        """Replaces the numbers of one argument, one after the other."""
        value = self.args[name]
        for number in REALS if "float" in kind else NUMBERS:
            if isinstance(value, list):
                for i in range(len(value)):
                    changed = [number if i == j else v for j, v in enumerate(value)]
                    self.refused_or_stable(f"{name} = {changed}", self.args | {name: changed})
                for changed in ([], [number], value + [number]):
                    self.refused_or_stable(f"{name} = {changed}", self.args | {name: changed})
            else:
                self.refused_or_stable(f"{name} = {number}", self.args | {name: number})

    def work(self):
        """Runs all cases."""
        for argument in self.op.default._schema.arguments:
            name, kind = argument.name, str(argument.type)
            if name not in self.args:
                raise AssertionError(f"raw_calls.py has no {name} for {self.name}")
            if "Tensor" in kind:
                self.dtypes(name)
                self.other_kinds(name)
            elif "int" in kind.lower() or "float" in kind:
                self.numbers(name, kind)
            elif kind == "str":
                self.refused_or_stable(f"{name} = ''", self.args | {name: ""})
            elif kind == "bool":
                flipped = not self.args[name]
                self.refused_or_stable(f"{name} = {flipped}", self.args | {name: flipped})
        for dtype in DTYPES:
            with contextlib.suppress(RuntimeError, TypeError):
                self.all_of(dtype)
        everywhere = {k: map_tensors(v, lambda t: t.to("meta")) for k, v in self.args.items()}
        found = self.call("all on meta", everywhere)
        if found and any(a.shape != b.shape for a, b in zip(found, self.base, strict=True)):
            self.complain("has other sizes than on the CPU")


def main():
    """Tests the ops of the command line."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # New tensors contain NaN, which reveals elements that an op leaves unwritten.
    torch.use_deterministic_algorithms(True)
    if BYTES is not None:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in sys.argv[1:]:
        Worker(name).work()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
