"""Every pooling op as a module and under the transforms of PyTorch."""

import pytest
import torch
from contracts import load_cases
from pool_inputs import LAYOUTS
from pooling import Pooling, first_case_per_op
from recorder import Recorder

# One call of each op: the options make no difference here.
OPS = first_case_per_op(load_cases(Pooling))

every_op = pytest.mark.parametrize("case", OPS, ids=lambda case: case.op)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "channels_last"])


@pytest.mark.parametrize(
    "case", [c for c in OPS if "module" not in c.exceptions], ids=lambda case: case.op
)
def test_module_equals_the_function_and_prints_its_options(device, case):
    module, tensors = case.module(**case.options), case.tensors(device=device)
    assert torch.equal(module(*tensors.values()), case(tensors))
    options = [f"{name}={value}" for name, value in case.options.items()]
    assert repr(module).startswith(f"{type(module).__name__}({options[0]}, {options[1]}")
    assert all(option in repr(module) for option in options)


def batches_of_three(case):
    """Returns the tensors of three calls, stacked."""
    tensors = {name: t.detach() for name, t in case.tensors(count=4, size=(6, 5)).items()}
    batched = {name: torch.stack([t, 2 * t, t + 1]) for name, t in tensors.items()}
    boxes = tensors["boxes"]
    batched["boxes"] = torch.stack([boxes, boxes.clone(), boxes.clone()])
    batched["boxes"][:, :, 1:] += torch.tensor([0, 0.3, 0.7]).view(3, 1, 1)
    return batched


@every_op
def test_vmap_equals_a_loop(case):
    batched = batches_of_three(case)
    for mapped in (list(batched), *([name] for name in batched)):
        dims = tuple(0 if name in mapped else None for name in batched)
        inputs = {name: t if name in mapped else t[0] for name, t in batched.items()}
        each = [
            case({name: t[i] if name in mapped else t for name, t in inputs.items()})
            for i in range(3)
        ]
        found = torch.vmap(lambda *t: case.function(*t, **case.options), dims)(*inputs.values())
        assert torch.equal(found, torch.stack(each)), mapped


@every_op
def test_func_grad_equals_autograd_with_and_without_vmap(case):
    batched = batches_of_three(case)
    argnums = tuple(list(batched).index(name) for name in case.gradients)
    gradient = torch.func.grad(
        lambda *tensors: case.function(*tensors, **case.options).square().sum(), argnums
    )
    found = torch.vmap(gradient)(*batched.values())
    for i in range(3):
        tensors = case.cast({name: t[i] for name, t in batched.items()}, torch.float32)
        loss = case(tensors).square().sum()
        expected = torch.autograd.grad(loss, [tensors[name] for name in case.gradients])
        single = gradient(*(t[i] for t in batched.values()))
        torch.testing.assert_close(single, expected)
        torch.testing.assert_close(tuple(f[i] for f in found), expected)


@every_op
def test_autocast_does_not_change_the_results(device, case):
    for dtype in (torch.float32, torch.bfloat16):
        tensors = case.tensors(dtype=dtype, device=device)
        expected = case.with_gradients(tensors)
        with torch.autocast(device, torch.bfloat16):
            found = case.with_gradients(tensors)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.exhaustive
@every_op
@every_layout
def test_raw_ops_pass_opcheck_forward_and_backward(device, case, layout):
    tensors = case.tensors(count=3, size=(6, 6), device=device, layout=layout)
    with Recorder() as recorder:
        case.with_gradients(tensors)
        for name in case.gradients if len(case.gradients) > 1 else ():
            single = {n: t.detach().requires_grad_(n == name) for n, t in tensors.items()}
            pooled = case(single)
            torch.autograd.grad(pooled, single[name], torch.randn_like(pooled))
    names = [func.name() for func, _, _ in recorder.calls]
    assert names[0].endswith("_forward") and names[-1].endswith("_backward")
    for func, args, kwargs in recorder.calls:
        torch.library.opcheck(func, args, kwargs)


@pytest.mark.exhaustive
@every_op
def test_compiled_pooling_equals_eager(case):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *tensors: case.function(*tensors, **case.options).square().sum(),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for layout in LAYOUTS:
        for size in (8, 11):
            tensors = case.tensors(count=size, size=(size, size + 1), layout=layout)
            leaves = [tensors[name] for name in case.gradients]
            found, expected = compiled(*tensors.values()), case(tensors).square().sum()
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(
                torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves)
            )
