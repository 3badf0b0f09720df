import math

import pytest
import torch
from reference_sparse_pool import DeformPSRoIPooling as Reference

import detops
from detops import _C

LAYOUTS = [torch.contiguous_format, torch.channels_last]

# Channels, group_size, part_size, classes, output_size, sample_per_part.
KINDS = {
    "one group": (4, 1, 3, 1, (3, 3), 4),
    "classes": (6, 1, 2, 3, (4, 4), 2),
    "groups": (4, 3, 3, 2, (3, 3), 3),
    "groups of several bins": (2, 2, 5, 1, (5, 4), 2),
    "more groups than bins": (2, 3, 1, 1, (2, 2), 2),
    "no offsets": (5, 2, 3, 0, (3, 3), 4),
    "many channels": (70, 1, 2, 2, (2, 2), 2),
    "one pixel": (1, 1, 1, 1, (1, 1), 1),
}


def arguments(kind, shape=(2, 11, 13), count=7, scale=0.5, dtype=torch.float32, layout=None):
    """Returns input, boxes, offset and the remaining arguments of deform_psroi_pooling."""
    channels, group, part, classes, size, samples = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    images, height, width = shape
    x = torch.randn(images, channels * group**2, height, width, generator=generator, dtype=dtype)
    extent = torch.tensor([width, height], dtype=dtype) / scale
    corner = (torch.rand(count, 2, generator=generator, dtype=dtype) * 1.2 - 0.3) * extent
    side = torch.rand(count, 2, generator=generator, dtype=dtype) * 0.7 * extent
    index = torch.randint(images, (count, 1), generator=generator)
    rois = torch.cat([index, corner, corner + side], 1)
    offset = torch.randn(count, 2 * classes, part, part, generator=generator, dtype=dtype)
    x = x.contiguous(memory_format=layout or torch.contiguous_format).requires_grad_()
    rest = (size, scale, channels, group, part, samples, 0.1)
    return x, rois, offset.requires_grad_() if classes else None, rest


def to_device(device, *tensors):
    return [None if t is None else t.detach().to(device).requires_grad_(t.requires_grad)
            for t in tensors]  # fmt: skip


def gradients(pooled, inputs):
    generator = torch.Generator().manual_seed(3)
    grad = torch.randn(pooled.shape, generator=generator, dtype=torch.float64).to(pooled)
    leaves = [t for t in inputs if t is not None]
    found = torch.autograd.grad(pooled, leaves, grad)
    return grad, *found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooling_matches_float64_reference(isa, device, layout, kind, dtype, poison):
    x, rois, offset, rest = arguments(kind, dtype=dtype, layout=layout)
    expected = Reference(x, rois, offset, *rest)
    x, rois, offset = to_device(device, x, rois, offset)
    pooled = detops.deform_psroi_pooling(x, rois, offset, *rest)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    close = dict(atol=tolerance, rtol=tolerance)
    output, count = expected.forward()
    torch.testing.assert_close(pooled.detach().cpu().double(), output, **close)
    if min(pooled.shape[1:]) > 1:
        assert pooled.is_contiguous(memory_format=layout)
    _, sample_count = _C.deform_psroi_pool_forward(
        x, rois, offset, rest[1], rest[2], rest[3], *rest[0], *rest[4:]
    )
    per_class = rest[2] // sample_count.size(1)
    assert torch.equal(sample_count.cpu().double(), count[:, ::per_class])
    assert 0 < (count == 0).sum() + (count < rest[5] ** 2).sum() and (count > 0).any()

    grad, grad_x, *grad_offset = gradients(pooled, (x, offset))
    assert grad_x.is_contiguous(memory_format=layout)
    expected_x, expected_offset = expected.backward(grad.cpu())
    torch.testing.assert_close(grad_x.cpu().double(), expected_x, **close)
    if offset is not None:
        torch.testing.assert_close(
            grad_offset[0].cpu().double(), expected_offset, atol=10 * tolerance, rtol=tolerance
        )


def test_missing_and_zero_offsets_agree(device):
    x, rois, offset, rest = arguments("one group")
    x, rois, offset = to_device(device, x, rois, offset)
    none = detops.deform_psroi_pooling(x, rois, None, *rest)
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, 0 * offset, *rest))
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, offset, *rest, no_trans=True))
    assert not torch.equal(none, detops.deform_psroi_pooling(x, rois, offset, *rest))
    empty = x.new_empty(0)
    assert torch.equal(none, detops.deform_psroi_pooling(x, rois, empty, *rest, no_trans=True))


def test_module_matches_op_with_defaults(device):
    x, rois, offset, (size, scale, channels, *_) = arguments("one group")
    x, rois, offset = to_device(device, x, rois, offset)
    module = detops.DeformPSRoIPooling(3, scale, channels, trans_std=0.2)
    expected = detops.deform_psroi_pooling(x, rois, offset, size, scale, channels, 1, 3, 4, 0.2)
    assert torch.equal(module(x, rois, offset), expected)
    assert "trans_std=0.2" in repr(module)
    boxes = [rois[rois[:, 0] == i][:, 1:] for i in range(2)]
    plain = detops.DeformPSRoIPooling(3, scale, channels, no_trans=True)
    order = rois[:, 0].argsort(stable=True)
    assert torch.equal(plain(x, boxes), plain(x, rois[order]))


X, R, O = torch.zeros(1, 8, 4, 4), torch.zeros(3, 5), torch.zeros(3, 4, 2, 2)  # noqa: E741


def call(x=X, rois=R, offset=O, size=2, scale=1.0, channels=2, group=2, **options):
    return detops.deform_psroi_pooling(x, rois, offset, size, scale, channels, group, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(channels=3), r"input must have output_channels \* group_size\^2 = 12 channels.*8"),
        (dict(channels=0, group=1), "output_channels must be at least 1, got 0"),
        (dict(group=0), r"group_size must be in \[1, 32767\], got 0"),
        (dict(part_size=0), r"part_size must be in \[1, 32767\], got 0"),
        (dict(sample_per_part=65), r"sample_per_part must be in \[1, 64\], got 65"),
        (dict(sample_per_part=0), r"sample_per_part must be in \[1, 64\], got 0"),
        (dict(trans_std=math.nan), "trans_std must be finite, got nan"),
        (dict(offset=O[0]), r"offset must be \[3, shifts, 2, 2\], got \[4, 2, 2\]"),
        (dict(offset=O[:2]), r"offset must be \[3, shifts, 2, 2\], got \[2, 4, 2, 2\]"),
        (dict(offset=O[:, :3]), r"offset must be \[K, 2 \* classes, .*\], got \[3, 3, 2, 2\]"),
        (dict(offset=O[:, :0]), r"offset must be \[3, shifts >= 2, 2, 2\], got \[3, 0, 2, 2\]"),
        (dict(part_size=3), r"offset must be \[3, shifts, 3, 3\], got \[3, 4, 2, 2\]"),
        (dict(offset=O.long()), "offset must be float32"),
        (dict(offset=O.to("meta")), "offset must be on the device of input"),
        (dict(offset=O.repeat(1, 2, 1, 1)[:, :6]), "multiple of offset's classes.*3.*got 2"),
    ],
)
def test_pooling_rejects_bad_input(arguments, message):
    with pytest.raises(RuntimeError, match="detops.deform_psroi_pooling: .*" + message):
        call(**arguments)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call(**arguments)


@pytest.mark.parametrize(
    ("grad", "count", "message"),
    [
        (
            torch.zeros(3, 2, 2),
            torch.zeros(3, 2, 2, 2),
            r"grad must be \[3, output_channels, high, wide\]",
        ),
        (
            torch.zeros(2, 2, 2, 2),
            torch.zeros(3, 2, 2, 2),
            r"grad must be \[3, output_channels, high, wide\], got",
        ),
        (torch.zeros(3, 2, 2, 2).half(), torch.zeros(3, 2, 2, 2), "grad must have the dtype of"),
        (torch.zeros(3, 2, 2, 2), torch.zeros(3, 1, 2, 2), r"count must be \[3, 2, 2, 2\], got"),
        (torch.zeros(3, 2, 2, 2), torch.zeros(3), r"count must be \[3, 2, 2, 2\], got"),
    ],
)
def test_backward_rejects_bad_gradients(grad, count, message):
    with pytest.raises(RuntimeError, match="detops.deform_psroi_pooling_backward: " + message):
        _C.deform_psroi_pool_backward(grad, X, R, O, count, 1.0, 2, 2, 4, 0.1)
