"""RoI ops with few channels or few, large RoIs, for which kernels read the map as it is."""

import subprocess
import sys

import pytest
import reference
import reference_roi_pool
import reference_sparse_pool
import torch
import torchvision

import detops

pytestmark = pytest.mark.slow

LAYOUTS = [torch.contiguous_format, torch.channels_last]
CHANNELS = [1, 3, 5, 16, 33]
# Map size, RoI sizes, number of RoIs. Sides are not a whole number away from the corner, because
# rounding would then decide how many samples an adaptive bin has.
RECTANGLES = {
    "whole map": ((23, 41), [(23, 41)], 2),
    "two pixels": ((60, 70), [(2.3, 2.2)], 3),
    "half the map": ((64, 48), [(32.4, 24.3)], 5),
    "larger than the map": ((9, 30), [(30.4, 90.3)], 2),
    "all sizes": ((50, 64), [(2.3, 2.2), (50, 64), (25.3, 3.3), (3.3, 40.4), (0.5, 0.5)], 20),
    "none": ((12, 20), [(1, 1)], 0),
}


def inputs(rectangle, channels, layout, dtype=torch.float32, images=2):
    (height, width), sides, count = RECTANGLES[rectangle]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, height, width, generator=generator, dtype=torch.double)
    side = torch.tensor([sides[i % len(sides)] for i in range(count)]).view(-1, 2)
    room = torch.tensor([height, width]) - side
    corner = torch.rand(count, 2, generator=generator) * room
    image = torch.arange(count).view(-1, 1) % images
    rois = torch.cat([image, corner.flip(1), (corner + side).flip(1)], 1)
    return x.to(dtype).contiguous(memory_format=layout), rois


def gradient_of(call, x, grad):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(call(leaf), leaf, grad)[0]


def check(ours, theirs, x, tolerance):
    """Compares forward and backward with an op on float64, and one thread with two bit for bit."""

    def both():
        pooled = ours(x)
        return pooled, gradient_of(ours, x, grad)

    wide = x.double().contiguous()
    expected = theirs(wide)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    grad = grad.contiguous(memory_format=LAYOUTS[not x.is_contiguous()])
    expected_grad = gradient_of(theirs, wide, grad.double())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        pooled, map_grad = both()
        torch.set_num_threads(2)
        again = both()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(pooled, again[0]) and torch.equal(map_grad, again[1])
    assert pooled.dtype == map_grad.dtype == x.dtype
    for a, b in ((pooled, expected), (map_grad, expected_grad)):
        scale = max(1.0, b.abs().max().item() if b.numel() else 0)
        torch.testing.assert_close(a.double(), b, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("rectangle", RECTANGLES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (40, 40)])
def test_roi_align_matches_torchvision(isa, channels, layout, rectangle, size, poison):
    x, rois = inputs(rectangle, channels, layout)
    for sampling in (1, 2, 3, -1):
        check(
            lambda x: detops.roi_align(x, rois, size, 1.0, sampling),  # noqa: B023
            lambda x: torchvision.ops.roi_align(x, rois.double(), size, 1.0, sampling),  # noqa: B023
            x,
            2e-5,
        )


@pytest.mark.parametrize("rectangle", RECTANGLES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", [torch.double, torch.half, torch.bfloat16])
def test_roi_align_of_every_dtype_matches_torchvision(
    isa, dtype, channels, layout, rectangle, poison
):
    x, rois = inputs(rectangle, channels, layout, dtype)
    rois = rois.double() if dtype == torch.double else rois
    tolerance = {torch.double: 1e-12, torch.half: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for sampling, aligned in ((2, True), (-1, False)):
        check(
            lambda x: detops.roi_align(x, rois, (7, 5), 1.0, sampling, aligned),  # noqa: B023
            lambda x: torchvision.ops.roi_align(x, rois.double(), (7, 5), 1.0, sampling, aligned),  # noqa: B023
            x,
            tolerance,
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rectangle", ["whole map", "half the map", "two pixels"])
def test_roi_align_matches_reference(layout, rectangle):
    x, rois = inputs(rectangle, 2, layout, torch.double)
    for sampling in (2, -1):
        expected = reference.roi_align(x, rois, (3, 2), 1.0, sampling, True)
        pooled = detops.roi_align(x, rois, (3, 2), 1.0, sampling, True)
        torch.testing.assert_close(pooled, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_reads_only_sampled_pixels(isa, layout):
    # The samples of 1x1 bins read 4 pixels; all others hold NaN.
    for channels in CHANNELS:
        x = torch.full((1, channels, 40, 40), torch.nan).contiguous(memory_format=layout)
        x[:, :, 19:21, 19:21] = 3
        rois = torch.tensor([[0.0, 0, 0, 40, 40]])
        pooled = detops.roi_align(x, rois, 1, 1.0, 1, True)
        assert (pooled == 3).all()


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_odd_boxes_pool_the_same_alone_and_together(channels, layout, aligned, poison):
    x = torch.randn(1, channels, 30, 20).contiguous(memory_format=layout)
    inf, nan = torch.inf, torch.nan
    boxes = [[5, 5, 5, 5], [15, 12, 3, 2], [-9, -9, -5, -5], [0, 0, 3e7, 9], [nan, 1, 2, 3],
             [-inf, 0, inf, 9], [-1e4, -1e4, 1e4, 1e4], [0, 0, 20, 30]]  # fmt: skip
    rois = torch.tensor([[0.0, *box] for box in boxes])
    alone = [detops.roi_align(x, roi[None], 3, 1.0, 2, aligned) for roi in rois]
    pooled = detops.roi_align(x, rois, 3, 1.0, 2, aligned)
    torch.testing.assert_close(pooled, torch.cat(alone), atol=1e-5, rtol=1e-5, equal_nan=True)
    assert pooled[:, :].isfinite().all()
    grad = torch.ones_like(pooled)
    together = gradient_of(lambda x: detops.roi_align(x, rois, 3, 1.0, 2, aligned), x, grad)
    many = [
        gradient_of(lambda x: detops.roi_align(x, roi[None], 3, 1.0, 2, aligned), x, grad[:1])  # noqa: B023
        for roi in rois
    ]
    torch.testing.assert_close(together, torch.stack(many).sum(0), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rectangle", RECTANGLES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.double, torch.half, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (40, 3)])
def test_roi_pool_matches_torchvision(isa, dtype, size, channels, layout, rectangle, poison):
    x, rois = inputs(rectangle, channels, layout, dtype)
    x[0, :, 3:5] = x[0, :, 3:4, :1]  # ties: the first counts
    x[-1, 0, 5] = torch.nan
    x[-1, -1, :, 7] = -torch.inf
    rois = rois.to(torch.promote_types(dtype, torch.float32))
    pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, *size)
    wide = x.float() if dtype != torch.double else x
    expected, places = torch.ops.torchvision.roi_pool(wide.contiguous(), rois, 1.0, *size)
    # If a bin has no pixel above -inf, torchvision returns -inf or the lowest number.
    plain = places >= 0
    assert torch.equal(argmax[plain], places[plain])
    assert torch.equal(pooled[plain], expected[plain].to(dtype))
    geometry = (1.0, *size, *x.shape)
    grad = torch.randn(pooled.shape).to(dtype).contiguous(memory_format=layout)

    def backward():
        return detops._C.roi_pool_backward(grad, x, rois, argmax, *geometry)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    one = backward()
    torch.set_num_threads(2)
    two = backward()
    torch.set_num_threads(before)
    sums = torch.zeros(x[:, :, 0, 0].numel(), x[0, 0].numel(), dtype=torch.double)
    image = rois[:, 0].long().view(-1, 1, 1, 1)
    rows = (image * channels + torch.arange(channels).view(-1, 1, 1)).expand(argmax.shape)
    some = argmax >= 0
    sums.index_put_((rows[some], argmax[some].long()), grad[some].double(), accumulate=True)
    tolerance = {torch.half: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(one.double(), sums.view(x.shape), atol=tolerance, rtol=tolerance)
    assert torch.equal(one, two)


@pytest.mark.parametrize("rectangle", ["whole map", "two pixels", "half the map", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.double, torch.half, torch.bfloat16])
def test_roi_align_rotated_matches_float64_weights(isa, dtype, channels, layout, rectangle, poison):
    x, rois = inputs(rectangle, channels, layout, dtype)
    centre, side = (rois[:, 1:3] + rois[:, 3:]) / 2, rois[:, 3:] - rois[:, 1:3]
    angle = 37.0 * torch.arange(len(rois)).view(-1, 1)
    boxes = torch.cat([rois[:, :1], centre, side, angle], 1)
    wide_boxes = boxes.double()
    boxes = boxes.to(torch.promote_types(dtype, torch.float32))
    for sampling in (2, -1):
        pixels = torch.eye(x[0, 0].numel(), dtype=torch.double).view(-1, *x.shape[2:])
        # Pooling is linear: maps with a single pixel set give the weights of each bin.
        if sampling == 2 and channels == 3 and rectangle == "whole map":
            expected = reference_sparse_pool.roi_align_rotated(x, boxes, (3, 2), 1.0, 2)
            pooled = detops.roi_align_rotated(x, boxes, (3, 2), 1.0, 2)
            tolerance = {torch.half: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 2e-5)
            torch.testing.assert_close(pooled.double(), expected, atol=tolerance, rtol=tolerance)
        rule = [
            detops.roi_align_rotated(pixels[None], [*box.unbind()] and box[None], (3, 2), 1.0,
                                     sampling)
            for box in torch.cat([0 * wide_boxes[:, :1], wide_boxes[:, 1:]], 1)
        ]  # fmt: skip
        rules = torch.cat(rule) if rule else torch.zeros(0, len(pixels), 3, 2).double()

        def theirs(x, rules=rules):
            of_image = x[wide_boxes[:, 0].long()].flatten(2)
            return torch.einsum("kcp,kphw->kchw", of_image, rules)

        check(
            lambda x: detops.roi_align_rotated(x, boxes, (3, 2), 1.0, sampling),  # noqa: B023
            theirs,
            x,
            {torch.half: 2e-3, torch.bfloat16: 2e-2, torch.double: 1e-12}.get(dtype, 5e-5),
        )


@pytest.mark.parametrize("op", ["ps_roi_align", "ps_roi_pool"])
@pytest.mark.parametrize("rectangle", ["whole map", "two pixels", "half the map", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_position_sensitive_ops_match_float64(isa, channels, layout, rectangle, op, poison):
    x, rois = inputs(rectangle, 6 * channels, layout)
    rois = rois[:, [0, 1, 2, 3, 4]]
    x[:, :, -1] = 0  # ps_roi_pool of torchvision and detops treat it differently
    x[:, :, :, -1] = 0
    extra = (2,) if op == "ps_roi_align" else ()
    rois = rois.round() if op == "ps_roi_pool" else rois
    pooled = getattr(detops, op)(x, rois, (3, 2), 1.0, *extra)
    raw = getattr(detops._C, f"{op}_backward")
    grad = torch.randn(pooled.shape).contiguous(memory_format=layout)
    one = raw(grad, rois, 1.0, 3, 2, *x.shape, *extra)
    # Backward is the transpose of forward, which other tests compare with torchvision, too.
    wide = x.double().requires_grad_()
    linear = getattr(detops, op)(wide, rois.double(), (3, 2), 1.0, *extra)
    torch.testing.assert_close(pooled.double(), linear.detach(), atol=1e-4, rtol=1e-4)
    (expected,) = torch.autograd.grad(linear, wide, grad.double())
    torch.testing.assert_close(one.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("op", ["ps_roi_align", "ps_roi_pool"])
@pytest.mark.parametrize("rectangle", ["whole map", "two pixels", "half the map", "none"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2)])
@pytest.mark.parametrize("channels", [1, 9, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.double, torch.half, torch.bfloat16])
def test_both_layouts_give_the_same_position_sensitive_bits(
    isa, dtype, channels, size, rectangle, op, poison
):
    """The kernel reads a channels_last map as it is or copies planes, with the same bits."""
    x, rois = inputs(rectangle, size[0] * size[1] * channels, torch.contiguous_format, dtype, 1)
    rois = rois.to(torch.promote_types(dtype, torch.float32))
    rois[:, 0] = 0
    last = x.contiguous(memory_format=torch.channels_last)
    extra = (-1,) if op == "ps_roi_align" else ()
    call, raw = getattr(detops, op), getattr(detops._C, f"{op}_backward")
    pooled = call(x, rois, size, 1.0, *extra)
    assert torch.equal(call(last, rois, size, 1.0, *extra), pooled)
    many = rois.repeat(40, 1)  # enough RoIs for copies
    assert torch.equal(call(last, many, size, 1.0, *extra), pooled.repeat(40, 1, 1, 1))
    tolerance = {torch.half: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-5)
    if channels == 1:
        expected = getattr(reference_roi_pool, op)(x, rois, size, 1.0, *extra)
        torch.testing.assert_close(pooled.double(), expected, atol=tolerance, rtol=tolerance)
    grad = torch.randn(pooled.shape).to(dtype)
    wide = x.double().requires_grad_()
    linear = call(wide, rois.double(), size, 1.0, *extra)
    (expected,) = torch.autograd.grad(linear, wide, grad.double())
    for layout in LAYOUTS:
        spread = raw(grad.contiguous(memory_format=layout), rois, 1.0, *size, *x.shape, *extra)
        torch.testing.assert_close(spread.double(), expected, atol=tolerance, rtol=tolerance)
    if dtype in (torch.half, torch.bfloat16):  # rounded once
        sums = raw(grad.float(), rois, 1.0, *size, *x.shape, *extra)
        assert torch.equal(raw(grad, rois, 1.0, *size, *x.shape, *extra), sums.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.double, torch.half, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3, 4, 9, 15, 40])
def test_roi_align_of_few_samples_matches_torchvision(isa, dtype, channels, poison):
    # The kernel pools few bins and samples RoI by RoI, and more by pixel lists over many planes.
    tolerance = {torch.double: 1e-12, torch.half: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 2e-5)
    for rectangle in ("two pixels", "half the map", "all sizes"):
        x, rois = inputs(rectangle, channels, torch.contiguous_format, dtype)
        rois = rois.double() if dtype == torch.double else rois
        for size, sampling in (((1, 1), 1), ((1, 1), 4), ((2, 2), 2), ((16, 1), 1), ((30, 7), 2)):
            check(
                lambda x: detops.roi_align(x, rois, size, 1.0, sampling),  # noqa: B023
                lambda x: torchvision.ops.roi_align(x, rois.double(), size, 1.0, sampling),  # noqa: B023
                x,
                tolerance,
            )
    expected = reference.roi_align(x, rois, (1, 1), 1.0, 2, False)
    pooled = detops.roi_align(x, rois, (1, 1), 1.0, 2)
    torch.testing.assert_close(pooled.double(), expected.double(), atol=tolerance, rtol=tolerance)


def test_batch_index_out_of_range_raises_with_few_samples():
    x = torch.randn(2, 3, 9, 9)
    for image in (-1.0, 2.0, torch.nan):
        with pytest.raises(RuntimeError, match="boxes\\[1, 0\\] is a batch index"):
            detops.roi_align(x, torch.tensor([[0.0, 1, 1, 5, 5], [image, 1, 1, 5, 5]]), 1, 1.0, 2)


@pytest.mark.parametrize("sampling", [1, -1])  # RoI by RoI, and by pixel lists
def test_error_names_the_first_of_many_bad_boxes(sampling, two_threads):
    rois = torch.tensor([0.0, 1, 1, 5, 5]).repeat(4000, 1)
    rois[1900:, 0] = 1.0

    def refused():
        with pytest.raises(RuntimeError, match=r"boxes\[1900, 0\] is a batch index"):
            detops.roi_align(torch.randn(1, 16, 9, 9), rois, 1, 1.0, sampling)

    two_threads(refused)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 33])
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_roi_pool_gradient_of_few_bins_matches_sums(isa, dtype, channels, layout, poison):
    # With so few bins each sum has its own slot instead of a copy of the map.
    x = torch.randn(2, channels, 90, 100).to(dtype).contiguous(memory_format=layout)
    box = [20.0, 30, 60, 70]
    rois = torch.tensor([[1, *box], [0, *box], [1, *box], [1, 0, 0, 9, 9]])  # several per pixel
    pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, 3, 2)
    argmax[3, 0, 0, 0], argmax[3, 0, 0, 1] = -1, 90 * 100  # outside the map
    grad = torch.randn(pooled.shape).to(dtype).contiguous(memory_format=layout)
    got = detops._C.roi_pool_backward(grad, x, rois, argmax, 1.0, 3, 2, *x.shape)
    sums = torch.zeros(2, channels, 90 * 100)
    for k, roi in enumerate(rois):
        for c in range(channels):
            for place, g in zip(argmax[k, c].flatten().tolist(), grad[k, c].flatten(), strict=True):
                if 0 <= place < 90 * 100:
                    sums[int(roi[0]), c, place] += g.float()
    tolerance = {torch.half: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(
        got.float().flatten(2), sums, atol=tolerance, rtol=tolerance, check_stride=False
    )


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_roi_pool_of_subpixel_bins_matches_torchvision(isa, channels, poison):
    # Neighbouring bins share pixels.
    x, rois = inputs("all sizes", channels, torch.contiguous_format)
    for size in ((28, 28), (90, 3), (2, 130)):
        pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, *size)
        expected, places = torch.ops.torchvision.roi_pool(x, rois, 1.0, *size)
        assert torch.equal(pooled, expected) and torch.equal(argmax, places)


PEAK = """
import torch
torch.set_num_threads(1)
from detops.bench.corner_calls import calls
from detops.bench.corner_report import peak_of
from detops.bench.corners import Corner
ours, theirs = calls(Corner({arguments}))
print(peak_of(ours), peak_of(theirs))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        "'roi_align', rois=1, size=1024, sampling=1, side=64",
        "'roi_align', 'backward', rois=1, size=1024, sampling=1, side=64",
        "'roi_align', rois=20, size=28, extent='whole'",
        "'roi_align', 'backward', 'channels_last', channels=3, rois=4, size=512",
        "'roi_pool', channels=3, rois=4, size=512, side=64",
        "'roi_pool', 'backward', dtype='bfloat16', channels=3, rois=4, side=1024",
        "'ps_roi_align', layout='channels_last', channels=16, rois=20, size=1",
        "'ps_roi_pool', 'backward', dtype='bfloat16', extent='whole'",
        "'roi_pool', 'backward', 'channels_last', 'bfloat16', channels=3, rois=4",
        "'roi_pool', 'backward', 'channels_last', 'bfloat16', channels=3, rois=1000",
    ],
)
def test_peak_memory_is_at_most_twice_torchvision(arguments):
    """The bound holds for any number of channels."""
    code = PEAK.format(arguments=arguments)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, theirs = map(int, run.stdout.split())
    assert 0 < ours <= 2 * max(theirs, 1 << 20)
