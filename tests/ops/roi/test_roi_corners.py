"""RoIAlign with few channels or few, large RoIs, for which kernels read the feature map directly.

The ordinary suite runs a part of the combinations: each value of each parameter, with each
instruction set and layout.
"""

import subprocess
import sys
from functools import cache

import pytest
import reference
import reference_sparse_pool
import torch
import torchvision
from corner_inputs import (
    CHANNELS,
    DTYPES,
    FEW_RECTANGLES,
    LAYOUTS,
    RECTANGLES,
    check,
    input_gradient,
    inputs,
    parametrize_some,
)

import detops

pytestmark = pytest.mark.slow


@parametrize_some(
    ("rectangle", "channels", "size"),
    [
        ("whole map", 1, (40, 40)),
        ("two pixels", 3, (7, 5)),
        ("half the map", 33, (1, 1)),
        ("larger than the map", 5, (7, 5)),
        ("all sizes", 16, (7, 5)),
        ("none", 3, (1, 1)),
    ],
    RECTANGLES,
    CHANNELS,
    [(1, 1), (7, 5), (40, 40)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_matches_torchvision(isa, channels, layout, rectangle, size, poison):
    x, rois = inputs(rectangle, channels, layout)
    for sampling in (1, 2, 3, -1):
        check(
            lambda x: detops.roi_align(x, rois, size, 1.0, sampling),  # noqa: B023
            lambda x: torchvision.ops.roi_align(x, rois.double(), size, 1.0, sampling),  # noqa: B023
            x,
            2e-5,
        )


@parametrize_some(
    ("rectangle", "channels", "dtype"),
    [
        ("whole map", 3, torch.half),
        ("two pixels", 16, torch.bfloat16),
        ("half the map", 1, torch.bfloat16),
        ("larger than the map", 33, torch.half),
        ("all sizes", 5, torch.double),
        ("none", 1, torch.half),
    ],
    RECTANGLES,
    CHANNELS,
    DTYPES[1:],
)
@pytest.mark.parametrize("layout", LAYOUTS)
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
def test_malformed_boxes_pool_the_same_alone_and_together(channels, layout, aligned, poison):
    x = torch.randn(1, channels, 30, 20).contiguous(memory_format=layout)
    inf, nan = torch.inf, torch.nan
    boxes = [[5, 5, 5, 5], [15, 12, 3, 2], [-9, -9, -5, -5], [0, 0, 3e7, 9], [nan, 1, 2, 3],
             [-inf, 0, inf, 9], [-1e4, -1e4, 1e4, 1e4], [0, 0, 20, 30]]  # fmt: skip
    rois = torch.tensor([[0.0, *box] for box in boxes])
    single = [detops.roi_align(x, roi[None], 3, 1.0, 2, aligned) for roi in rois]
    pooled = detops.roi_align(x, rois, 3, 1.0, 2, aligned)
    torch.testing.assert_close(pooled, torch.cat(single), atol=1e-5, rtol=1e-5, equal_nan=True)
    assert pooled[:, :].isfinite().all()
    grad = torch.ones_like(pooled)
    joint = input_gradient(lambda x: detops.roi_align(x, rois, 3, 1.0, 2, aligned), x, grad)
    many = [
        input_gradient(lambda x: detops.roi_align(x, roi[None], 3, 1.0, 2, aligned), x, grad[:1])  # noqa: B023
        for roi in rois
    ]
    torch.testing.assert_close(joint, torch.stack(many).sum(0), atol=1e-4, rtol=1e-5)


def rotated_inputs(rectangle, channels, layout, dtype):
    x, rois = inputs(rectangle, channels, layout, dtype)
    centre, side = (rois[:, 1:3] + rois[:, 3:]) / 2, rois[:, 3:] - rois[:, 1:3]
    angle = 37.0 * torch.arange(len(rois)).view(-1, 1)
    return x, torch.cat([rois[:, :1], centre, side, angle], 1).double()


@cache
def rotated_weights(rectangle, channels, sampling):
    """Returns the weights of all pixels in each 3x2 bin of each RoI, in float64.

    Pooling is linear: feature maps with a single nonzero pixel give the weights.
    """
    x, boxes = rotated_inputs(rectangle, channels, LAYOUTS[0], torch.double)
    pixels = torch.eye(x[0, 0].numel(), dtype=torch.double).view(1, -1, *x.shape[2:])
    boxes[:, 0] = 0
    return detops.roi_align_rotated(pixels, boxes, (3, 2), 1.0, sampling)


@parametrize_some(
    ("rectangle", "channels", "dtype"),
    [
        ("whole map", 3, torch.float32),
        ("two pixels", 33, torch.bfloat16),
        ("half the map", 16, torch.half),
        ("half the map", 1, torch.float32),
        ("none", 1, torch.double),
    ],
    FEW_RECTANGLES,
    [1, 3, 16, 33],
    DTYPES,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_rotated_matches_float64_weights(isa, dtype, channels, layout, rectangle, poison):
    x, wide_boxes = rotated_inputs(rectangle, channels, layout, dtype)
    boxes = wide_boxes.to(torch.promote_types(dtype, torch.float32))
    for sampling in (2, -1):
        if sampling == 2 and channels == 3 and rectangle == "whole map":
            expected = reference_sparse_pool.roi_align_rotated(x, boxes, (3, 2), 1.0, 2)
            pooled = detops.roi_align_rotated(x, boxes, (3, 2), 1.0, 2)
            tolerance = {torch.half: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 2e-5)
            torch.testing.assert_close(pooled.double(), expected, atol=tolerance, rtol=tolerance)
        weights = rotated_weights(rectangle, channels, sampling)

        def reference_pool(x, weights=weights):
            pixels_of_image = x[wide_boxes[:, 0].long()].flatten(2)
            return torch.einsum("kcp,kphw->kchw", pixels_of_image, weights)

        check(
            lambda x: detops.roi_align_rotated(x, boxes, (3, 2), 1.0, sampling),  # noqa: B023
            reference_pool,
            x,
            {torch.half: 2e-3, torch.bfloat16: 2e-2, torch.double: 1e-12}.get(dtype, 5e-5),
        )


@parametrize_some(
    ("channels", "dtype"),
    [
        (1, torch.half),
        (3, torch.float32),
        (4, torch.double),
        (9, torch.bfloat16),
        (15, torch.float32),
        (40, torch.half),
    ],
    [1, 3, 4, 9, 15, 40],
    DTYPES,
)
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

    def error_message():
        with pytest.raises(RuntimeError, match=r"boxes\[1900, 0\] is a batch index"):
            detops.roi_align(torch.randn(1, 16, 9, 9), rois, 1, 1.0, sampling)

    two_threads(error_message)


PEAKS = """
import torch
torch.set_num_threads(1)
from detops.bench.corner_calls import calls
from detops.bench.corner_report import peak_memory
from detops.bench.corners import Corner
for corner in {corners}:
    print(*map(peak_memory, calls(corner)))
"""
CALLS = [
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
]


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_peak_memory_is_at_most_twice_torchvision():
    """The bound holds for any number of channels."""
    corners = ", ".join(f"Corner({arguments})" for arguments in CALLS)
    code = PEAKS.format(corners=f"[{corners}]")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for arguments, line in zip(CALLS, run.stdout.splitlines(), strict=True):
        ours, theirs = map(int, line.split())
        assert 0 < ours <= 2 * max(theirs, 1 << 20), arguments
