"""Every pooling op with empty, odd and invalid inputs."""

import math
import time
from functools import cache

import pytest
import torch
from contracts import load_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_inputs import LAYOUTS
from pooling import CHANNELS, SCALE, Pooling, first_case_per_op

CASES = load_cases(Pooling)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "channels_last"])
# One call of each op, for properties that do not depend on the options.
every_op = pytest.mark.parametrize("case", first_case_per_op(CASES), ids=lambda case: case.op)


def check_empty(case, tensors, shape):
    pooled, *gradients = case.with_gradients(tensors)
    assert pooled.shape == shape
    for name, grad in zip(case.gradients, gradients, strict=True):
        assert grad.shape == tensors[name].shape and not grad.any()


@every_case
@every_layout
@pytest.mark.parametrize("images", [2, 0])
def test_pooling_of_no_boxes_is_empty(device, case, layout, images, poison):
    tensors = case.tensors(images, CHANNELS, 0, device=device, layout=layout)
    channels = case(case.tensors()).size(1)
    check_empty(case, tensors, (0, channels, 2, 3))


@pytest.mark.parametrize(
    "case", [c for c in CASES if "no channels" not in c.exceptions], ids=lambda case: case.name
)
@every_layout
def test_pooling_of_no_channels_is_empty(device, case, layout, poison):
    tensors = case.tensors(2, 0, 3, device=device, layout=layout)
    check_empty(case, tensors, (3, 0, 2, 3))


NAN, INF = math.nan, math.inf
MALFORMED = {
    "nan": [NAN, 0, 5, 5],
    "nan at the end": [0, 0, 5, NAN],
    "infinite": [0, 0, INF, 5],
    "both infinite": [-INF, -INF, INF, INF],
    "billion": [-1e9, -1e9, 1e9, 1e9],
    "1e30": [-1e30, -1e30, 1e30, 1e30],
    "too wide for a float": [-3e38, 2, 3e38, 4],
    "far away": [1e9, 1e9, 1e9 + 64, 1e9 + 64],
    "inverted": [9, 9, 2, 2],
    "inverted far away": [1e30, 1e30, -1e30, -1e30],
    "inverted sideways": [9, 1, 2, 8],
    "empty": [3, 3, 3, 3],
}
MALFORMED_ROTATED = {
    "nan": [NAN, 0, 5, 5, 0],
    "nan side": [4, 4, 5, NAN, 0],
    "nan angle": [4, 4, 5, 5, NAN],
    "infinite angle": [4, 4, 5, 5, INF],
    "large angle": [4, 4, 5, 5, 1e30],
    "infinite side": [0, 0, INF, 5, 30],
    "infinite centre": [-INF, 3, 5, 5, 30],
    "million": [0, 0, 1e6, 1e6, 30],
    "billion": [0, 0, 1e9, 1e9, 30],
    "1e30": [-1e30, 1e30, 1e30, 1e30, 45],
    "far away": [1e9, 1e9, 64, 64, 10],
    "long and thin": [8, 8, 1e6, 1e-3, 45],
    "empty": [8, 8, 0, 0, 45],
    "negative": [8, 8, -5, 5, 45],
}


def malformed_boxes(case):
    return MALFORMED if case.columns == 5 else MALFORMED_ROTATED


@every_case
@every_layout
def test_malformed_boxes_pool_finitely_and_do_not_affect_others(device, case, layout):
    tensors = case.tensors(1, count=3, size=(16, 16), device=device, layout=layout)
    extreme = (
        [case.with_options(sampling_ratio=case.max_sampling_ratio)]
        if case.max_sampling_ratio
        else []
    )
    for variant in (case, *extreme):
        alone = variant(tensors).detach()
        for name, box in (MALFORMED if case.columns == 5 else MALFORMED_ROTATED).items():
            boxes = tensors["boxes"].detach().clone()
            boxes[2, 1:] = torch.tensor(box, device=device)
            malformed = tensors | {"boxes": boxes.requires_grad_("boxes" in case.gradients)}
            start = time.perf_counter()
            pooled, *gradients = variant.with_gradients(malformed)
            assert time.perf_counter() - start < 5, name
            tolerance = case.tolerance if "same bits beside other RoIs" in case.exceptions else 0
            torch.testing.assert_close(pooled[:2], alone[:2], atol=tolerance, rtol=0, msg=name)
            assert all(t.isfinite().all() for t in (pooled, *gradients)), name
            if all(map(math.isfinite, box)):
                continue
            assert not pooled[2].any(), name
            for element, grad in zip(case.gradients, gradients, strict=True):
                assert element.startswith("input") or not grad[2].any(), name


@every_op
@settings(max_examples=150)
@given(
    st.data(),
    st.lists(st.tuples(*[st.floats(width=32)] * 5), min_size=1, max_size=4),
    st.floats(width=32),
    st.integers(1, 4),
    st.sampled_from([1.0, 0.5, 1e-3, 1e3]),
    st.sampled_from([6, 40]),
    st.booleans(),
)
def test_pooled_values_stay_within_the_range_of_the_map(
    case, data, boxes, offsets, size, scale, width, last
):
    case = data.draw(st.sampled_from([other for other in CASES if other.op == case.op]))
    case = case.with_options(output_size=(size, size))
    case = case.with_options(spatial_scale=scale) if "spatial_scale" in case.options else case
    tensors = case.tensors(1, 2, len(boxes), (5, width), layout=LAYOUTS[last])
    with torch.no_grad():
        tensors["boxes"][:, 1:] = torch.tensor(boxes)[:, : case.columns - 1]
        if "offset" in tensors:
            tensors["offset"][:] = offsets
    pooled, *gradients = case.with_gradients(tensors)
    largest_value = max(t.abs().max() for name, t in tensors.items() if name.startswith("input"))
    assert pooled.isfinite().all() and pooled.abs().max() <= largest_value * (1 + 1e-5)
    assert gradients[0].isfinite().all()


@cache
def bins_that_depend_on_each_pixel(case):
    """Returns float64 tensors, and which elements of the result read pixel (4, 5).

    The pixel is not next to the border, where the oracle multiplies pixels by 0.
    """
    tensors = case.tensors(1, 20, 24, dtype=torch.float64)
    plain = {name: t.detach() for name, t in tensors.items()}
    raised = plain | {"input": plain["input"].clone()}
    raised["input"][:, 1::2, 4, 5] += 1e30
    before, after = (case.oracle(*x.values(), **case.options) for x in (plain, raised))
    return tensors, before != after


@every_case
@every_layout
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nonfinite_pixels_affect_only_the_bins_that_sample_them(isa, device, case, layout, value):
    tensors, affected = bins_that_depend_on_each_pixel(case)
    affected = affected.to(device)
    assert affected.any() and not affected.all()
    single = case.cast(tensors, torch.float32, device, layout)
    plain = case(single).detach()
    with torch.no_grad():
        single["input"][:, 1::2, 4, 5] = value
    found = case(single).detach()
    assert torch.equal(found[~affected], plain[~affected])
    if not case.maximum:
        expected = torch.full_like(found[affected], value)
        torch.testing.assert_close(found[affected], expected, equal_nan=True, rtol=0, atol=0)


@every_case
@every_layout
@pytest.mark.parametrize("value", [NAN, INF])
def test_pixels_outside_the_roi_are_not_read(isa, device, case, layout, value):
    tensors = case.tensors(1, 20, 1, (14, 40), device=device, layout=layout)
    box = [11.1, 4.2, 18.2, 6.7] if case.columns == 5 else [14.6, 5.4, 6, 2, 30]
    inside = torch.zeros(14, 40, dtype=torch.bool, device=device)
    inside[2:10, 9:21] = True
    with torch.no_grad():
        tensors["boxes"][0, 1:5] = torch.tensor(box[:4]) / SCALE
        tensors["boxes"][0, 5:] = torch.tensor(box[4:])
        for name in tensors.keys() - {"input", "boxes"}:
            tensors[name].zero_()  # offsets would move the bins
        expected = case(tensors)
        tensors["input"][..., ~inside] = value
    found, grad, *_ = case.with_gradients(tensors)
    assert torch.equal(found, expected)
    assert not grad[..., ~inside].any()
    # An infinite gradient meets no weight of 0.
    _, grad, *_ = case.with_gradients(tensors, torch.full_like(found, INF))
    assert not grad[..., ~inside].any() and not grad.isnan().any() and grad.isinf().any()


@every_case
@every_layout
@pytest.mark.parametrize("index", [2, -1, 7, 1e6, -30000, NAN, INF])
def test_batch_index_out_of_range_raises_or_pools_zero(
    device, values_are_checked, case, layout, index
):
    tensors, valid = (case.tensors(count=4, device=device, layout=layout) for _ in range(2))
    pooled, leaves = case(tensors), [tensors[name] for name in case.gradients]
    # Bypasses autograd, so that the backward pass sees the index.
    tensors["boxes"].data[1, 0] = index
    grad = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1)).to(device)
    if values_are_checked:
        message = r"boxes\[1, 0\] is a batch index"
        with pytest.raises(RuntimeError, match=rf"detops.{case.op}: {message}"):
            case(tensors)
        with pytest.raises(RuntimeError, match=rf"_backward: {message}"):
            torch.autograd.grad(pooled, leaves, grad)
        return
    expected = case(valid).detach()
    expected[1] = 0
    assert torch.equal(case(tensors), expected)
    found = torch.autograd.grad(pooled, leaves, grad)
    grad[1] = 0
    for a, b in zip(found, case.with_gradients(valid, grad)[1:], strict=True):
        assert torch.equal(a, b)


@every_op
def test_batch_index_of_a_vmapped_call_refers_to_its_own_entry(case):
    batched = [torch.stack([t.detach()] * 3) for t in case.tensors().values()]
    batched[1][1, 0, 0] = 2  # would address an image of the next entry
    with pytest.raises(RuntimeError, match="is a batch index"):
        torch.vmap(lambda *tensors: case.function(*tensors, **case.options))(*batched)


def as_lists(tensors):
    """Returns the boxes of each of three images, of which the second has none."""
    rows = tensors["boxes"].detach()
    return [rows[:2, 1:], rows[:0, 1:], rows[2:, 1:]]


@every_op
def test_list_of_boxes_equals_rois(device, case):
    tensors = case.tensors(images=3, count=5, device=device)
    with torch.no_grad():
        tensors["boxes"][:, 0] = torch.tensor([0.0, 0, 2, 2, 2])
    expected = case(tensors)
    assert torch.equal(case(tensors | {"boxes": as_lists(tensors)}), expected)
    assert torch.equal(case(tensors | {"boxes": tuple(as_lists(tensors))}), expected)
    if "module" not in case.exceptions:
        _, *others = list(tensors.values())[1:]
        module = case.module(**case.options)
        assert torch.equal(module(tensors["input"], as_lists(tensors), *others), expected)


@every_op
def test_list_of_boxes_promotes_mixed_dtypes(case):
    tensors = case.tensors(images=3, count=5, dtype=torch.float64)
    boxes = as_lists(tensors)
    for mixed in ([boxes[0].half(), *boxes[1:]], [*boxes[:2], boxes[2].half()]):
        rows = [torch.cat([torch.full((len(b), 1), i), b.double()], 1) for i, b in enumerate(mixed)]
        expected = case(tensors | {"boxes": torch.cat(rows)})
        assert torch.equal(case(tensors | {"boxes": mixed}), expected)


@every_op
def test_bad_lists_of_boxes_raise(case):
    tensors = case.tensors(images=3)
    n, valid = case.columns - 1, as_lists(tensors)
    rows = tensors["boxes"].detach()
    message = rf"detops.{case.op}: boxes\[1\] must be \[L, {n}\], got \[8, {n + 1}\]"
    with pytest.raises(ValueError, match=message):
        case(tensors | {"boxes": [valid[0], rows]})
    message = f"detops.{case.op}: boxes must hold a tensor for each image, got an empty list"
    with pytest.raises(ValueError, match=message):
        case(tensors | {"boxes": []})
    with pytest.raises(RuntimeError, match=f"detops.{case.op}: boxes must be a tensor, got None"):
        case(tensors | {"boxes": None})
    for dtype in (torch.uint16, torch.bool, torch.complex64, torch.float8_e5m2):
        for position in (0, 1):
            boxes = list(valid)
            boxes[position] = boxes[position].to(dtype)
            name = str(dtype).removeprefix("torch.")
            message = rf"boxes\[{position}\] must be float32, .* or uint8, got {name}"
            with pytest.raises(RuntimeError, match=f"detops.{case.op}: {message}"):
                case(tensors | {"boxes": boxes})


@every_op
def test_invalid_tensors_raise(case):
    tensors = {name: t.detach() for name, t in case.tensors().items()}
    x, boxes, n = tensors["input"], tensors["boxes"], case.columns
    for name, invalid, message in (
        ("boxes", boxes[:, 1:], rf"boxes must be \[K, {n}\], got \[8, {n - 1}\]"),
        ("boxes", boxes[0], rf"boxes must be \[K, {n}\], got \[{n}\]"),
        ("boxes", boxes.long(), "boxes must be float32, .*, got int64"),
        ("boxes", boxes.to("meta"), "boxes must be on the device of input"),
        ("input", x[0], r"inputs? must be \[N, \w+, .*\], got"),
        ("input", x.long(), "inputs? must be float32, .*, got int64"),
        ("input", x[:, :, :0], r"inputs? must be \[.* >= 1, \w+ >= 1\], got"),
        ("input", x[..., :0], r"inputs? must be \[.* >= 1, \w+ >= 1\], got"),
    ):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode(), pytest.raises(RuntimeError, match=f"detops.{case.op}: {message}"):
                case(tensors | {name: invalid})


@every_op
def test_invalid_options_raise(case):
    invalid = [
        (dict(output_size=0), "output_size must be at least 1 x 1, got 0 x 0"),
        (dict(output_size=(2, -1)), "output_size must be at least 1 x 1, got 2 x -1"),
    ]
    for scale in (0.0, -1.0, NAN, INF):
        if "spatial_scale" in case.options:
            message = f"spatial_scale must be positive and finite, got {scale:g}"
            invalid.append((dict(spatial_scale=scale), message))
        else:
            scales = [scale] * len(case.options["spatial_scales"])
            invalid.append(
                (dict(spatial_scales=scales), "spatial_scales must be positive and finite")
            )
    if case.max_sampling_ratio:
        too_many = case.max_sampling_ratio + 1
        message = f"sampling_ratio must be at most {too_many - 1}, got {too_many}"
        invalid += [
            (dict(sampling_ratio=too_many), message),
            (dict(sampling_ratio=10**6), "sampling_ratio must be at most"),
        ]
    for options, message in invalid:
        for mode in (torch.inference_mode, torch.enable_grad):
            with mode(), pytest.raises(RuntimeError, match=f"detops.{case.op}: {message}"):
                case.with_options(**options)(case.tensors())
