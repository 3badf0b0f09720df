"""An argument of a wrong kind raises one error that names the op and the argument.

The calls follow from the signatures of the public functions and from ``raw_calls.py``, so a new op
needs no entry here.
"""

import inspect
import re

import numpy
import pytest
import raw_calls
import torch
from torch import Tensor

import detops

pytestmark = pytest.mark.filterwarnings("ignore")

PUBLIC = sorted(
    name
    for name in detops.ops.__all__
    if inspect.isfunction(getattr(detops, name)) and name != "register_tensor_methods"
)
# Arguments of public functions that their ops split into two.
SPLIT_ARGUMENTS = {
    "output_size": ("pooled_height", "pooled_width"),
    "size": ("height", "width"),
    "image_shape": ("height", "width"),
}
# These ops copy the bits of any dtype.
ANY_DTYPE = {"gdh"}
CONVERSION_ERRORS = (RuntimeError, TypeError, ValueError, IndexError)


def annotation_of(name, key):
    return str(inspect.signature(getattr(detops, name)).parameters[key].annotation)


def is_tensor(name, key):
    return "Tensor" in annotation_of(name, key)


def is_list(name, key):
    return bool(re.match(r"list|.*Sequence", annotation_of(name, key)))


def valid_call(name):
    """Returns arguments of the public function, made from those of its op."""
    op_arguments, call_arguments = raw_calls.arguments(name), {}
    for key in inspect.signature(getattr(detops, name)).parameters:
        if key in SPLIT_ARGUMENTS:
            call_arguments[key] = tuple(op_arguments[part] for part in SPLIT_ARGUMENTS[key])
        elif key in op_arguments:
            value = op_arguments[key]
            is_tensor_list = (
                is_tensor(name, key) and is_list(name, key) and isinstance(value, Tensor)
            )
            call_arguments[key] = [value] * 3 if is_tensor_list else value
    return call_arguments


def with_gradient(value):
    if isinstance(value, list):
        return [with_gradient(x) for x in value]
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.clone().requires_grad_() if floating else value


def invalid_values(x):
    """Yields named values that ops must reject in place of the tensor ``x``."""
    yield "a NumPy array", numpy.asarray(x)
    yield "a list of numbers", x.tolist()
    yield "a list of arrays", [numpy.asarray(x)]
    yield "a list of lists of tensors", [[x]]
    yield "a list of tensors", [x]
    yield "a tuple of tensors", (x, x)
    yield "an empty list", []
    yield "a dict", {"x": x}
    yield "None", None
    yield "a number", 2.5
    yield "a bool", True
    yield "a string", "text"
    yield "an object", object()


def invalid_tensors(x):
    """Yields named functions that convert ``x`` into a kind of tensor that ops must reject."""
    yield "sparse COO", x.to_sparse
    yield "sparse CSR", lambda: x.flatten(1).to_sparse_csr()
    yield "mkldnn", lambda: x.float().to_mkldnn()
    yield "nested", lambda: torch.nested.nested_tensor([x, x])
    yield "jagged", lambda: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    yield "quantized", lambda: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8)
    yield "complex", lambda: torch.complex(x.float(), x.float())
    yield "meta", lambda: x.to("meta")


def invalid_inputs(x):
    yield from invalid_values(x)
    for floating in {x.is_floating_point(), True}:
        for kind, make in invalid_tensors(x.float() if floating else x):
            try:
                yield kind, make()
            except CONVERSION_ERRORS:
                continue  # PyTorch has no such tensor


def problem(call, op, argument, may_succeed=False):
    """Returns the problem with the call's error, or None."""
    try:
        call()
    except Exception as error:
        message = str(error)
        names_argument = re.match(rf"detops(\.|::){op}\b", message)
        names_argument = names_argument and re.search(rf"\b{argument}(?!\w)", message)
        is_single_error = error.__cause__ is None and (
            error.__context__ is None or error.__suppress_context__
        )
        return (
            None
            if names_argument and is_single_error
            else f"{type(error).__name__}: {message[:200]}"
        )
    return None if may_succeed else "was accepted"


def problems(name, key, argument, replace_with):
    """Yields the problems of calls; ``replaced`` puts each odd value into an argument."""
    function, args = getattr(detops, name), valid_call(name)
    first = args[key][0] if isinstance(args[key], list) else args[key]
    for kind, x in invalid_inputs(first):
        valid = is_list(name, key) and kind in ("a list of tensors", "a tuple of tensors")
        if valid and argument == key:
            continue
        may_succeed = kind == "meta" or name in ANY_DTYPE and isinstance(x, Tensor)
        may_succeed = may_succeed or kind == "None" and "None" in annotation_of(name, key)
        for change in (lambda value: value, with_gradient):
            call_arguments = {k: change(v) for k, v in args.items()} | {key: replace_with(x)}
            found = problem(
                lambda call_arguments=call_arguments: function(**call_arguments),
                name,
                argument,
                may_succeed,
            )
            if found is not None:
                yield f"{argument} is {kind}: {found}"


@pytest.mark.parametrize("name", PUBLIC)
def test_errors_name_invalid_tensors(name):
    args = valid_call(name)
    getattr(detops, name)(**args)
    tensors = [key for key in args if is_tensor(name, key)]
    assert tensors
    errors = [found for key in tensors for found in problems(name, key, key, lambda x: x)]
    assert not errors, "\n".join(errors)


LISTS = [
    (name, key)
    for name in PUBLIC
    for key in inspect.signature(getattr(detops, name)).parameters
    if is_tensor(name, key) and re.search("list|Sequence", annotation_of(name, key))
]


@pytest.mark.parametrize(("name", "key"), LISTS, ids=" ".join)
def test_errors_name_invalid_elements_of_lists(name, key):
    value = valid_call(name)[key]
    elements = list(value) if isinstance(value, list) else [value[:, 1:], value[:, 1:]]

    def replace_element(x, i):
        return [*elements[:i], x, *elements[i + 1 :]]

    errors = []
    for i in range(2):
        # An op names the whole list when it checks a joined tensor or the dtypes.
        argument = rf"{key}(\[{i}\]|(?!\[))"
        errors += problems(name, key, argument, lambda x, i=i: replace_element(x, i))
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("name", PUBLIC)
def test_ops_accept_meta_tensors_or_name_them_in_errors(name):
    def on_meta(value):
        if isinstance(value, list):
            return [on_meta(x) for x in value]
        return value.to("meta") if isinstance(value, Tensor) else value

    call_arguments = {key: on_meta(value) for key, value in valid_call(name).items()}
    first = next(key for key in call_arguments if is_tensor(name, key))
    found = problem(lambda: getattr(detops, name)(**call_arguments), name, first, may_succeed=True)
    assert found is None


INVALID_NUMBERS = {
    "a string": "text",
    "strings": ("a", "b"),
    "None": None,
    "a tensor": torch.rand(3),
    "a float": 2.5,
    "three": [1, 2, 3],
    "an empty list": [],
    "a dict": {},
    "an object": object(),
    "too large": 2**70,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_errors_name_invalid_numbers_and_strings(name):
    function, args = getattr(detops, name), valid_call(name)
    errors = []
    for key, parameter in inspect.signature(function).parameters.items():
        # Python evaluates the truth of flags and converts integers to floats.
        kinds = set(INVALID_NUMBERS) - {bool: {"a tensor"}, float: {"too large"}}.get(
            parameter.annotation, set()
        )
        for kind in sorted(kinds if not is_tensor(name, key) else ()):
            call_arguments = args | {key: INVALID_NUMBERS[kind]}
            found = problem(
                lambda call_arguments=call_arguments: function(**call_arguments),
                name,
                key,
                may_succeed=True,
            )
            if found is not None:
                errors.append(f"{key} is {kind}: {found}")
    assert not errors, "\n".join(errors)


def test_errors_state_the_expected_and_the_actual_type():
    boxes, scores = torch.rand(3, 4), torch.rand(3)
    for call, message in (
        (
            lambda: detops.nms(boxes.numpy(), scores, 0.5),
            "detops.nms: boxes must be a tensor, got numpy.ndarray",
        ),
        (
            lambda: detops.roi_align(torch.rand(1, 1, 4, 4), [[1, 2, 3, 4]], 2),
            "detops.roi_align: boxes[0] must be a tensor, got list",
        ),
        (
            lambda: detops.box_iou(boxes.to_sparse(), boxes),
            "detops.box_iou: boxes1 must be strided, got torch.sparse_coo",
        ),
        (
            lambda: detops.nms(boxes, scores, "0.5"),
            "detops.nms: iou_threshold must be a number, got '0.5'",
        ),
        (
            lambda: detops.roi_align(torch.rand(1, 1, 4, 4), [boxes], (2, 2.5)),
            "detops.roi_align: output_size must be 64-bit integers, got 2.5",
        ),
        (
            lambda: detops.roi_align(torch.rand(1, 1, 4, 4), [boxes], (2, 2, 2)),
            "detops.roi_align: output_size must be one integer or two, got [2, 2, 2]",
        ),
        (
            lambda: detops.clip_boxes_to_image(boxes, 9),
            "detops.clip_boxes_to_image: size must be (height, width), got 9",
        ),
        (
            lambda: detops.multiscale_roi_align(boxes, boxes, 2, [1.0]),
            "detops.multiscale_roi_align: inputs must be a list of tensors, got torch.Tensor",
        ),
        (
            lambda: detops.BoxCoder().encode(boxes, None),
            "detops.encode_boxes: anchors must be a tensor, got None",
        ),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        assert str(caught.value) == message
