import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_inputs import LAYOUTS, feature_map
from torch.autograd import gradcheck, gradgradcheck
from torchvision.ops import roi_align as torchvision_roi_align

import detops
from detops._C import roi_align_backward, roi_align_forward


def rois_for(images, count, size=40.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(images, (count, 1), generator=generator).to(dtype)
    # The boxes reach beyond the map on all sides.
    boxes = reference.random_boxes(count, 2 * size, generator, dtype) - size / 2
    return torch.cat([index, boxes], dim=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 37, 25, 31), (7, 5)), ((1, 3, 7, 5), (1, 1)), ((2, 64, 20, 21), (14, 14)),
     ((1, 1, 1, 1), (2, 2)), ((3, 70, 1, 40), (3, 4)),
     ((1, 12, 90, 7), (300, 2)), ((1, 4, 6, 600), (3, 8))],
)  # fmt: skip
def test_roi_align_matches_torchvision(isa, device, layout, sampling_ratio, aligned, shape, size):
    x = feature_map(*shape, layout=layout, device=device)
    rois = rois_for(shape[0], 40, max(shape[2:])).to(device)
    rois[:, 1:] *= 2
    args = (rois, size, 0.5, sampling_ratio, aligned)
    ours, theirs = detops.roi_align(x, *args), torchvision_roi_align(x, *args)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    if min(shape[1:]) > 1:
        assert ours.is_contiguous(memory_format=layout)
    grad = torch.randn_like(theirs)
    (ours_grad,) = torch.autograd.grad(ours, x, grad)
    (theirs_grad,) = torch.autograd.grad(theirs, x, grad)
    torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-4, rtol=0)


# Shape, number of RoIs, range of box sides: they select the path of the CPU kernels.
WAYS = {
    "several batches": ((2, 33, 40, 50), 2600, (3, 12)),
    "a band of rows that moves down": ((1, 3, 400, 1300), 60, (10, 90)),
    "one RoI taller than the band": ((1, 2, 700, 900), 4, (500, 690)),
    "far apart": ((1, 40, 90, 200), 3, (5, 20)),
    "many channels, large windows": ((1, 256, 60, 70), 5, (50, 60)),
    "images without a RoI": ((5, 20, 30, 30), 6, (5, 20)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_path_matches_torchvision(device, layout, way, two_threads, poison):
    shape, count, (least, most) = WAYS[way]
    generator = torch.Generator().manual_seed(2)
    x = feature_map(*shape, layout=layout, device=device)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor(shape[:1:-1])
    side = least + torch.rand(count, 2, generator=generator) * (most - least)
    image = torch.randint(shape[0], (count, 1), generator=generator)
    image[image == 2] = 1
    rois = torch.cat([image, centre - side / 2, centre + side / 2], 1).to(device)
    assert torch.empty(1000).isnan().all()

    def ours():
        pooled = detops.roi_align(x, rois, 7, 1.0, 2, True)
        return pooled, torch.autograd.grad(pooled, x, grad)[0]

    # Runs on the CPU: the GPU kernel of torchvision is nondeterministic, which raises here.
    theirs = x.detach().cpu().requires_grad_()
    expected = torchvision_roi_align(theirs, rois.cpu(), 7, 1.0, 2, True)
    grad = torch.randn(expected.shape, generator=generator)
    (expected_grad,) = torch.autograd.grad(expected.double(), theirs, grad.double())
    grad = grad.to(device).contiguous(memory_format=layout)
    one, two = two_threads(ours)
    torch.testing.assert_close(one[0].cpu(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(one[1].cpu(), expected_grad, atol=3e-4, rtol=1e-4)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 31, 32, 33, 100])
def test_half_precision_is_float32_rounded_once(isa, dtype, layout, channels, poison):
    x = feature_map(2, channels, 12, 19, layout=layout).to(dtype).detach().requires_grad_()
    rois = rois_for(2, 20, 20.0)
    ours = detops.roi_align(x, rois, (5, 3), 0.5, 2)
    wide = x.detach().float().requires_grad_()
    expected = detops.roi_align(wide, rois, (5, 3), 0.5, 2)
    assert ours.dtype == dtype
    # Half a unit in the last place, plus the rounding of sums in another order.
    once = {"atol": 2e-6, "rtol": torch.finfo(dtype).eps / 2}
    torch.testing.assert_close(ours.float(), expected, **once)
    grad = torch.randn_like(expected).to(dtype)
    (ours_grad,) = torch.autograd.grad(ours, x, grad)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.float())
    torch.testing.assert_close(ours_grad.float(), expected_grad, **once)


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_matches_reference_in_float64(isa, layout, sampling_ratio, aligned):
    x = feature_map(2, 2, 6, 9, layout=layout, dtype=torch.double).detach()
    rois = rois_for(2, 8, 20, torch.double)
    expected = reference.roi_align(x, rois, (3, 2), 0.5, sampling_ratio, aligned)
    ours = detops.roi_align(x, rois, (3, 2), 0.5, sampling_ratio, aligned)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_rounds_once(isa, device, dtype, layout):
    half = feature_map(2, 37, 16, 15, layout=layout, dtype=dtype, device=device)
    wide = half.detach().float().requires_grad_()
    rois = rois_for(2, 30).to(device)
    ours = detops.roi_align(half, rois, 7, 0.5, 2)
    expected = detops.roi_align(wide, rois, 7, 0.5, 2)
    assert ours.dtype == dtype
    assert torch.equal(ours, expected.to(dtype))
    grad = torch.randn_like(ours)
    (ours_grad,) = torch.autograd.grad(ours, half, grad)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.float())
    torch.testing.assert_close(ours_grad, expected_grad.to(dtype))
    # Boxes stay in float32: half precision cannot hold coordinates above 2048 to the pixel.
    assert not torch.equal(ours, detops.roi_align(half, rois.to(dtype), 7, 0.5, 2))


def test_half_precision_keeps_special_values(isa):
    values = [0.0, -0.0, 6e-8, -6e-5, 65504.0, math.inf, -math.inf, math.nan, 1.0, -2.5, 1e-7]
    x = torch.tensor(values).half().view(1, len(values), 1, 1)
    x = x.expand(1, len(values), 2, 2).contiguous(memory_format=torch.channels_last)
    ours = detops.roi_align(x, torch.tensor([[0.0, 0, 0, 1, 1]]), 1, 1.0, 1)
    torch.testing.assert_close(ours.flatten(), x[0, :, 0, 0], rtol=0, atol=0, equal_nan=True)


def test_list_and_module_match_op(device):
    x = feature_map(3, 4, 9, 9, device=device)
    boxes = [reference.random_boxes(n, 9.0).to(device) for n in (2, 0, 3)]
    index = torch.tensor([0.0, 0, 2, 2, 2], device=device)
    rois = torch.cat([index[:, None], torch.cat(boxes)], 1)
    assert torch.equal(detops.roi_align(x, boxes, 2), detops.roi_align(x, rois, 2))
    module = detops.RoIAlign(2, 1.0, -1)
    assert torch.equal(module(x, boxes), detops.roi_align(x, rois, 2))


def test_boxes_of_another_dtype_are_cast_up(device):
    x = feature_map(1, 2, 8, 8, device=device)
    rois = rois_for(1, 5).to(device)
    expected = detops.roi_align(x, rois.double().float(), 2)
    assert torch.equal(detops.roi_align(x, rois.double(), 2), expected)
    assert detops.roi_align(x.double(), rois, 2).dtype == torch.double


@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_passes_gradcheck(device, layout):
    x = feature_map(2, 2, 5, 6, layout=layout, dtype=torch.double, device=device)
    rois = rois_for(2, 4, 8, torch.double).to(device)
    for args in ((2, 0.7, 2, True), ((3, 1), 1.0, -1, False)):

        def call(x):
            return detops.roi_align(x, rois, *args)  # noqa: B023

        assert gradcheck(call, (x,))
        assert gradgradcheck(call, (x,))


def test_vmap_and_func_grad_match_loop():
    x = torch.randn(3, 2, 4, 6, 5)
    rois = torch.stack([rois_for(2, 4, 8)] * 3) + torch.tensor([0, 0.1, 0.2, 0.3, 0.4])
    rois[:, :, 0] = rois[:, :, 0].floor()

    def pool(x, rois):
        return detops.roi_align(x, rois, 2, 1.0, 2)

    for dims in ((0, 0), (0, None), (None, 0)):
        args = [a if d == 0 else a[0] for a, d in zip((x, rois), dims, strict=True)]
        each = [[a[i] if d == 0 else a for a, d in zip(args, dims, strict=True)] for i in range(3)]
        expected = torch.stack([pool(*e) for e in each])
        assert torch.equal(torch.vmap(pool, in_dims=dims)(*args), expected)

    gradient = torch.func.grad(lambda x, rois: pool(x, rois).square().sum())
    expected = torch.stack([gradient(x[i], rois[i]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(gradient)(x, rois), expected)
    wrong = rois.clone()
    wrong[1, 0, 0] = 2  # would address an image of the next entry
    with pytest.raises(RuntimeError, match="is a batch index"):
        torch.vmap(pool)(x, wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_run_and_thread_count_give_the_same_bits(isa, two_threads, layout):
    x = feature_map(2, 40, 20, 20, layout=layout)
    rois = rois_for(2, 600)

    def both():
        pooled = detops.roi_align(x, rois, 7, 1.0, 2)
        (grad,) = torch.autograd.grad(pooled.square().sum(), x)
        return pooled, grad

    first, second = two_threads(both)
    for a, b in zip(first + first, second + both(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("index", [2, -1, 7, 1e6, -30000, math.nan, math.inf])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked, index, layout):
    x = feature_map(2, 3, 5, 5, layout=layout, device=device).detach()
    rois = rois_for(2, 3).to(device)
    rois[1, 0] = index
    grad = torch.ones(3, 3, 2, 2, device=device)
    if values_are_checked:
        with pytest.raises(RuntimeError, match=r"detops.roi_align: boxes\[1, 0\] is a batch index"):
            detops.roi_align(x, rois, 2)
        with pytest.raises(RuntimeError, match=r"boxes\[1, 0\] is a batch index"):
            roi_align_backward(grad, rois, 1.0, 2, 2, 2, 3, 5, 5, 2)
    else:
        assert (detops.roi_align(x, rois, 2)[1] == 0).all()
        without = rois[[0, 2]]
        expected = roi_align_backward(grad[:2], without, 1.0, 2, 2, 2, 3, 5, 5, 2)
        assert torch.equal(roi_align_backward(grad, rois, 1.0, 2, 2, 2, 3, 5, 5, 2), expected)


ODD_BOXES = {
    "nan": [math.nan, 0, 5, 5],
    "infinite": [0, 0, math.inf, 5],
    "both infinite": [-math.inf, -math.inf, math.inf, math.inf],
    "billion": [-1e9, -1e9, 1e9, 1e9],
    "1e30": [-1e30, -1e30, 1e30, 1e30],
    "far away": [1e9, 1e9, 1e9 + 64, 1e9 + 64],
}


@pytest.mark.parametrize("box", ODD_BOXES.values(), ids=ODD_BOXES.keys())
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling_ratio", [-1, 2, 4096])
def test_odd_boxes_pool_to_finite_values(device, box, aligned, sampling_ratio):
    x = feature_map(1, 3, 16, 16, device=device)
    rois = torch.tensor([[0.0, *box], [0, 1, 1, 9, 9]], device=device)
    pooled = detops.roi_align(x, rois, 7, 1.0, sampling_ratio, aligned)
    assert pooled.isfinite().all()
    assert torch.equal(pooled[1:], detops.roi_align(x, rois[1:], 7, 1.0, sampling_ratio, aligned))
    (grad,) = torch.autograd.grad(pooled.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("box", [[9.0, 1, 2, 8], [9.0, 8, 2, 1], [3.0, 3, 3, 3]])
def test_inverted_and_empty_boxes_match_torchvision(device, box):
    x = feature_map(1, 2, 12, 12, device=device)
    rois = torch.tensor([[0, *box]], device=device)
    # torchvision rejects the first of these with adaptive sampling; no sample means zero.
    assert (detops.roi_align(x, rois, 3, aligned=True) == 0).all()
    for aligned in (False, True):
        expected = torchvision_roi_align(x, rois, 3, 1.0, 2, aligned)
        torch.testing.assert_close(detops.roi_align(x, rois, 3, 1.0, 2, aligned), expected)


def test_large_adaptive_boxes_match_torchvision():
    x = feature_map(1, 2, 16, 16)
    for side in (100.0, 1500.0, 3000.0):
        rois = torch.tensor([[0, -side / 2, -side / 3, side / 2, side]])
        expected = torchvision_roi_align(x, rois, 2)
        torch.testing.assert_close(detops.roi_align(x, rois, 2), expected, atol=1e-4, rtol=0)


def test_hundred_thousand_pixel_box_is_quick():
    # Sampling one by one would read 1e8 samples. The whole map lies in one bin.
    x = torch.ones(1, 1, 16, 16)
    pooled = detops.roi_align(x, torch.tensor([[0.0, -1, -1, 1e5, 1e5]]), 1)
    assert pooled.item() == pytest.approx((17 / 1e5) ** 2, rel=0.01)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixels_outside_the_roi_do_not_leak_in(isa, layout):
    x = torch.full((1, 20, 12, 40), math.nan).contiguous(memory_format=layout)
    x[:, :, 3:8, 10:20] = 1.0
    rois = torch.tensor([[0.0, 11, 4, 18, 6]])
    torch.testing.assert_close(detops.roi_align(x, rois, 3, 1.0, 2), torch.ones(1, 20, 3, 3))
    grad = torch.ones(1, 20, 3, 3)
    spread = torch.ops.detops.roi_align_backward(grad, rois, 1.0, 3, 3, 1, 20, 12, 40, 2)
    assert (spread[:, :, :3] == 0).all() and (spread[:, :, :, 20:] == 0).all()


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 3, 4, 4), 0), ((0, 3, 4, 4), 0), ((2, 0, 4, 4), 3)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_input_gives_empty_output_and_zero_gradient(device, shape, count, layout):
    x = feature_map(*shape, layout=layout, device=device)
    rois = torch.zeros(count, 5, device=device)
    pooled = detops.roi_align(x, rois, 2)
    assert pooled.shape == (count, shape[1], 2, 2)
    pooled.sum().backward()
    assert x.grad.shape == x.shape and (x.grad == 0).all()


X, R = torch.zeros(1, 2, 4, 4), torch.zeros(3, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.roi_align(X, R[:, :4], 2),
         r"detops.roi_align: boxes must be \[K, 5\], got \[3, 4\]"),
        (lambda: detops.roi_align(X[0], R, 2), r"detops.roi_align: input must be \[N, C, H, W\]"),
        (lambda: detops.roi_align(X.long(), R, 2), "detops.roi_align: input must be float32"),
        (lambda: detops.roi_align(X, R.long(), 2), "detops.roi_align: boxes must be float32"),
        (lambda: detops.roi_align(X, R, 0), "detops.roi_align: output_size must be at least 1 x 1"),
        (lambda: detops.roi_align(X, R, (2, -1)), "detops.roi_align: output_size must be.*2 x -1"),
        (lambda: detops.roi_align(X, R, 2, math.nan), "detops.roi_align: spatial_scale.*got nan"),
        (lambda: detops.roi_align(X, R, 2, 0.0), "detops.roi_align: spatial_scale must be"),
        (lambda: detops.roi_align(X, R, 2, 1.0, 10**6), "detops.roi_align: sampling_ratio must be"),
        (lambda: detops.roi_align(X, R.to("meta"), 2), "detops.roi_align: boxes must be on the"),
        (lambda: detops.roi_align(X[:, :, :0], R, 2), "detops.roi_align: input must be .*H >= 1"),
        (lambda: roi_align_backward(X, R, 1.0, 4, 4, 1, 2, 8, 8, 2),
         r"detops.roi_align_backward: grad must be \[3, 2, 4, 4\], got \[1, 2, 4, 4\]"),
    ],
)  # fmt: skip
def test_roi_align_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call()


def test_roi_align_rejects_bad_lists():
    message = r"detops.roi_align: boxes\[1\] must be \[L, 4\], got \[3, 5\]"
    with pytest.raises(ValueError, match=message):
        detops.roi_align(X, [R[:, :4], R], 2)
    message = "detops.roi_align: boxes must hold a tensor for each image, got an empty list"
    with pytest.raises(ValueError, match=message):
        detops.roi_align(X, [], 2)
    with pytest.raises(RuntimeError, match="detops.roi_align: boxes must be a tensor, got None"):
        detops.roi_align(X, None, 2)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.bool, torch.complex64, torch.float8_e5m2])
def test_roi_align_rejects_lists_of_other_dtypes(place, dtype):
    boxes = [R[:, 1:], R[:, 1:]]
    boxes[place] = boxes[place].to(dtype)
    name = str(dtype).removeprefix("torch.")
    message = rf"detops.roi_align: boxes\[{place}\] must be float32, .* or uint8, got {name}"
    with pytest.raises(RuntimeError, match=message):
        detops.roi_align(X, boxes, 2)


def test_lists_of_several_dtypes_are_cast_up():
    x, fine = torch.rand(2, 1, 9, 9, dtype=torch.float64), torch.tensor([[0, 0, 1 + 1e-9, 3]])
    for boxes in ([R[:, 1:], fine.double()], [fine.double(), R[:, 1:].half()]):
        rois = [
            torch.cat([torch.full((len(b), 1), float(i)), b], 1).double()
            for i, b in enumerate(boxes)
        ]
        assert torch.equal(detops.roi_align(x, boxes, 2), detops.roi_align(x, torch.cat(rois), 2))


def test_raw_op_defaults_match_maskrcnn_benchmark():
    x, rois = feature_map(1, 2, 6, 6).detach(), rois_for(1, 3)
    assert torch.equal(
        roi_align_forward(x, rois, 0.5, 2, 3, 0), detops.roi_align(x, rois, (2, 3), 0.5)
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_passes_opcheck(layout):
    x, rois = feature_map(2, 3, 6, 6, layout=layout).detach(), rois_for(2, 3)
    torch.library.opcheck(torch.ops.detops.roi_align_forward.default, (x, rois, 0.5, 2, 3, 2, True))
    grad = torch.randn(3, 3, 2, 3).contiguous(memory_format=layout)
    torch.library.opcheck(
        torch.ops.detops.roi_align_backward.default, (grad, rois, 0.5, 2, 3, 2, 3, 6, 6, 2)
    )


@pytest.mark.slow
def test_compiled_roi_align_matches_eager():
    def call(x, rois):
        return detops.roi_align(x, rois, (3, 2), 0.5, 2).square().sum()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for layout in LAYOUTS:
        for size in (8, 11):
            x, rois = feature_map(2, 4, size, size + 1, layout=layout), rois_for(2, size)
            torch.testing.assert_close(compiled(x, rois), call(x, rois))
            (ours,) = torch.autograd.grad(compiled(x, rois), x)
            (expected,) = torch.autograd.grad(call(x, rois), x)
            torch.testing.assert_close(ours, expected)


def test_autocast_keeps_the_features_dtype():
    x, rois = feature_map(1, 2, 6, 6).detach(), rois_for(1, 3)
    expected = detops.roi_align(x, rois, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.roi_align(x, rois, 2), expected)
        assert detops.roi_align(x.bfloat16(), rois, 2).dtype == torch.bfloat16


@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([-1, 1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_any_boxes_pool_to_finite_values(boxes, size, sampling_ratio, aligned, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = feature_map(1, 2, 5, 6, layout=layout)
    rois = torch.tensor([[0.0, *b] for b in boxes])
    pooled = detops.roi_align(x, rois, size, 1.0, sampling_ratio, aligned)
    assert pooled.isfinite().all() and pooled.abs().max() <= x.abs().max() * (1 + 1e-5)
    (grad,) = torch.autograd.grad(pooled.sum(), x)
    assert grad.isfinite().all()
