"""Every pooling op with empty, odd and invalid inputs."""

import math
import time
from functools import cache

import pytest
import torch
from contracts import cases_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_inputs import LAYOUTS
from pooling import CHANNELS, SCALE, Pooling, one_for_each_op

CASES = cases_of(Pooling)

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "channels_last"])
# One call of each op, for properties that do not depend on the options.
every_op = pytest.mark.parametrize("case", one_for_each_op(CASES), ids=lambda case: case.op)


def check_empty(case, made, shape):
    pooled, *gradients = case.with_gradients(made)
    assert pooled.shape == shape
    for name, grad in zip(case.gradients, gradients, strict=True):
        assert grad.shape == made[name].shape and not grad.any()


@every_case
@every_layout
@pytest.mark.parametrize("images", [2, 0])
def test_pooling_of_no_boxes_is_empty(device, case, layout, images, poison):
    made = case.tensors(images, CHANNELS, 0, device=device, layout=layout)
    channels = case(case.tensors()).size(1)
    check_empty(case, made, (0, channels, 2, 3))


@pytest.mark.parametrize(
    "case", [c for c in CASES if "no channels" not in c.exceptions], ids=lambda case: case.name
)
@every_layout
def test_pooling_of_no_channels_is_empty(device, case, layout, poison):
    made = case.tensors(2, 0, 3, device=device, layout=layout)
    check_empty(case, made, (3, 0, 2, 3))


NAN, INF = math.nan, math.inf
ODD = {
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
ODD_ROTATED = {
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


def odd_boxes(case):
    return ODD if case.columns == 5 else ODD_ROTATED


@every_case
@every_layout
def test_odd_boxes_pool_to_finite_values_and_leave_others_alone(device, case, layout):
    made = case.tensors(1, count=3, size=(16, 16), device=device, layout=layout)
    most = [case.but(sampling_ratio=case.most_samples)] if case.most_samples else []
    for way in (case, *most):
        alone = way(made).detach()
        for name, box in (ODD if case.columns == 5 else ODD_ROTATED).items():
            boxes = made["boxes"].detach().clone()
            boxes[2, 1:] = torch.tensor(box, device=device)
            odd = made | {"boxes": boxes.requires_grad_("boxes" in case.gradients)}
            began = time.perf_counter()
            pooled, *gradients = way.with_gradients(odd)
            assert time.perf_counter() - began < 5, name
            apart = case.tolerance if "same bits beside other RoIs" in case.exceptions else 0
            torch.testing.assert_close(pooled[:2], alone[:2], atol=apart, rtol=0, msg=name)
            assert all(t.isfinite().all() for t in (pooled, *gradients)), name
            if all(map(math.isfinite, box)):
                continue
            assert not pooled[2].any(), name
            for of, grad in zip(case.gradients, gradients, strict=True):
                assert of.startswith("input") or not grad[2].any(), name


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
def test_any_boxes_pool_to_values_within_those_of_the_map(
    case, data, boxes, moved, size, scale, width, last
):
    case = data.draw(st.sampled_from([other for other in CASES if other.op == case.op]))
    case = case.but(output_size=(size, size))
    case = case.but(spatial_scale=scale) if "spatial_scale" in case.options else case
    made = case.tensors(1, 2, len(boxes), (5, width), layout=LAYOUTS[last])
    with torch.no_grad():
        made["boxes"][:, 1:] = torch.tensor(boxes)[:, : case.columns - 1]
        if "offset" in made:
            made["offset"][:] = moved
    pooled, *gradients = case.with_gradients(made)
    most = max(t.abs().max() for name, t in made.items() if name.startswith("input"))
    assert pooled.isfinite().all() and pooled.abs().max() <= most * (1 + 1e-5)
    assert gradients[0].isfinite().all()


@cache
def reads(case):
    """Returns float64 tensors, and which elements of the result read pixel (4, 5).

    The pixel is not next to the border, where the oracle multiplies pixels by 0.
    """
    made = case.tensors(1, 20, 24, dtype=torch.float64)
    plain = {name: t.detach() for name, t in made.items()}
    raised = plain | {"input": plain["input"].clone()}
    raised["input"][:, 1::2, 4, 5] += 1e30
    before, after = (case.oracle(*x.values(), **case.options) for x in (plain, raised))
    return made, before != after


@every_case
@every_layout
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nonfinite_pixels_reach_only_the_bins_that_read_them(isa, device, case, layout, value):
    made, affected = reads(case)
    affected = affected.to(device)
    assert affected.any() and not affected.all()
    single = case.cast(made, torch.float32, device, layout)
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
    made = case.tensors(1, 20, 1, (14, 40), device=device, layout=layout)
    box = [11.1, 4.2, 18.2, 6.7] if case.columns == 5 else [14.6, 5.4, 6, 2, 30]
    inside = torch.zeros(14, 40, dtype=torch.bool, device=device)
    inside[2:10, 9:21] = True
    with torch.no_grad():
        made["boxes"][0, 1:5] = torch.tensor(box[:4]) / SCALE
        made["boxes"][0, 5:] = torch.tensor(box[4:])
        for name in made.keys() - {"input", "boxes"}:
            made[name].zero_()  # offsets would move the bins
        expected = case(made)
        made["input"][..., ~inside] = value
    found, to_map, *_ = case.with_gradients(made)
    assert torch.equal(found, expected)
    assert not to_map[..., ~inside].any()
    # An infinite gradient meets no weight of 0.
    _, to_map, *_ = case.with_gradients(made, torch.full_like(found, INF))
    assert not to_map[..., ~inside].any() and not to_map.isnan().any() and to_map.isinf().any()


@every_case
@every_layout
@pytest.mark.parametrize("index", [2, -1, 7, 1e6, -30000, NAN, INF])
def test_batch_index_out_of_range_raises_or_pools_zero(
    device, values_are_checked, case, layout, index
):
    made, good = (case.tensors(count=4, device=device, layout=layout) for _ in range(2))
    pooled, leaves = case(made), [made[name] for name in case.gradients]
    made["boxes"].data[1, 0] = index  # bypasses autograd, so that the backward pass sees the index
    grad = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1)).to(device)
    if values_are_checked:
        message = r"boxes\[1, 0\] is a batch index"
        with pytest.raises(RuntimeError, match=rf"detops.{case.op}: {message}"):
            case(made)
        with pytest.raises(RuntimeError, match=rf"_backward: {message}"):
            torch.autograd.grad(pooled, leaves, grad)
        return
    expected = case(good).detach()
    expected[1] = 0
    assert torch.equal(case(made), expected)
    found = torch.autograd.grad(pooled, leaves, grad)
    grad[1] = 0
    for a, b in zip(found, case.with_gradients(good, grad)[1:], strict=True):
        assert torch.equal(a, b)


@every_op
def test_batch_index_of_a_vmapped_call_stays_in_its_entry(case):
    batched = [torch.stack([t.detach()] * 3) for t in case.tensors().values()]
    batched[1][1, 0, 0] = 2  # would address an image of the next entry
    with pytest.raises(RuntimeError, match="is a batch index"):
        torch.vmap(lambda *tensors: case.function(*tensors, **case.options))(*batched)


def lists_of(made):
    """Returns the boxes of each of three images, of which the second has none."""
    rows = made["boxes"].detach()
    return [rows[:2, 1:], rows[:0, 1:], rows[2:, 1:]]


@every_op
def test_list_of_boxes_equals_rois(device, case):
    made = case.tensors(images=3, count=5, device=device)
    with torch.no_grad():
        made["boxes"][:, 0] = torch.tensor([0.0, 0, 2, 2, 2])
    expected = case(made)
    assert torch.equal(case(made | {"boxes": lists_of(made)}), expected)
    assert torch.equal(case(made | {"boxes": tuple(lists_of(made))}), expected)
    if "module" not in case.exceptions:
        _, *others = list(made.values())[1:]
        module = case.module(**case.options)
        assert torch.equal(module(made["input"], lists_of(made), *others), expected)


@every_op
def test_list_of_boxes_casts_up(case):
    fine = case.tensors(images=3, count=5, dtype=torch.float64)
    boxes = lists_of(fine)
    for mixed in ([boxes[0].half(), *boxes[1:]], [*boxes[:2], boxes[2].half()]):
        rows = [torch.cat([torch.full((len(b), 1), i), b.double()], 1) for i, b in enumerate(mixed)]
        expected = case(fine | {"boxes": torch.cat(rows)})
        assert torch.equal(case(fine | {"boxes": mixed}), expected)


@every_op
def test_bad_lists_of_boxes_raise(case):
    made = case.tensors(images=3)
    n, good = case.columns - 1, lists_of(made)
    rows = made["boxes"].detach()
    message = rf"detops.{case.op}: boxes\[1\] must be \[L, {n}\], got \[8, {n + 1}\]"
    with pytest.raises(ValueError, match=message):
        case(made | {"boxes": [good[0], rows]})
    message = f"detops.{case.op}: boxes must hold a tensor for each image, got an empty list"
    with pytest.raises(ValueError, match=message):
        case(made | {"boxes": []})
    with pytest.raises(RuntimeError, match=f"detops.{case.op}: boxes must be a tensor, got None"):
        case(made | {"boxes": None})
    for dtype in (torch.uint16, torch.bool, torch.complex64, torch.float8_e5m2):
        for place in (0, 1):
            boxes = list(good)
            boxes[place] = boxes[place].to(dtype)
            name = str(dtype).removeprefix("torch.")
            message = rf"boxes\[{place}\] must be float32, .* or uint8, got {name}"
            with pytest.raises(RuntimeError, match=f"detops.{case.op}: {message}"):
                case(made | {"boxes": boxes})


@every_op
def test_wrong_tensors_raise(case):
    made = {name: t.detach() for name, t in case.tensors().items()}
    x, boxes, n = made["input"], made["boxes"], case.columns
    for name, wrong, message in (
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
                case(made | {name: wrong})


@every_op
def test_wrong_options_raise(case):
    wrong = [
        (dict(output_size=0), "output_size must be at least 1 x 1, got 0 x 0"),
        (dict(output_size=(2, -1)), "output_size must be at least 1 x 1, got 2 x -1"),
    ]
    for scale in (0.0, -1.0, NAN, INF):
        if "spatial_scale" in case.options:
            message = f"spatial_scale must be positive and finite, got {scale:g}"
            wrong.append((dict(spatial_scale=scale), message))
        else:
            scales = [scale] * len(case.options["spatial_scales"])
            wrong.append(
                (dict(spatial_scales=scales), "spatial_scales must be positive and finite")
            )
    if case.most_samples:
        more = case.most_samples + 1
        message = f"sampling_ratio must be at most {more - 1}, got {more}"
        wrong += [
            (dict(sampling_ratio=more), message),
            (dict(sampling_ratio=10**6), "sampling_ratio must be at most"),
        ]
    for options, message in wrong:
        for mode in (torch.inference_mode, torch.enable_grad):
            with mode(), pytest.raises(RuntimeError, match=f"detops.{case.op}: {message}"):
                case.but(**options)(case.tensors())
