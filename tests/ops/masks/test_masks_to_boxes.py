import math

import pytest
import reference_masks
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st

import detops

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
BITS = [torch.uint16, torch.uint32, torch.uint64]
FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def blobs(count, height, width, seed=0):
    """Returns bool masks with up to three pixels each; some are empty."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, height * width, dtype=torch.bool)
    for n in range(count):
        masks[n, torch.randint(height * width, (n % 4,), generator=generator)] = True
    return masks.view(count, height, width)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *BITS, *FLOATING])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (17, 40), (9, 70), (40, 133)])
def test_boxes_match_the_reference(device, isa, dtype, height, width):
    masks = blobs(24, height, width)
    boxes = detops.masks_to_boxes(masks.to(dtype).to(device))
    assert boxes.dtype == torch.float32
    assert torch.equal(boxes.cpu(), reference_masks.masks_to_boxes(masks))


def test_every_single_pixel_gives_its_box(device, isa):
    """Covers each position in a vector, a word and a remainder, from both ends."""
    masks = torch.eye(3 * 157, dtype=torch.bool, device=device).view(-1, 3, 157)
    for dtype in (torch.bool, torch.int32):
        x1, y1, x2, y2 = detops.masks_to_boxes(masks.to(dtype)).cpu().unbind(1)
        pixel = torch.arange(3 * 157)
        assert torch.equal(x1, (pixel % 157).float()) and torch.equal(x2, x1)
        assert torch.equal(y1, (pixel // 157).float()) and torch.equal(y2, y1)


def test_boxes_match_torchvision(device, isa):
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(20, 61, 83, generator=generator) > 0.999
    masks[3] = False
    masks[5] = True
    expected = torchvision.ops.masks_to_boxes(masks)
    assert torch.equal(detops.masks_to_boxes(masks.to(device)).cpu(), expected)


@pytest.mark.parametrize("dtype", FLOATING)
def test_only_zeros_count_as_background(device, isa, dtype):
    masks = torch.full((3, 9, 11), -0.0, dtype=dtype)
    masks[0, 2, 3], masks[0, 4, 1] = math.nan, math.inf
    masks[1, 5, 5] = -torch.finfo(dtype).smallest_normal
    boxes = detops.masks_to_boxes(masks.to(device))
    assert boxes.tolist() == [[1, 2, 3, 4], [5, 5, 5, 5], [0, 0, 0, 0]]


def test_any_nonzero_byte_sets_its_pixel(device, isa):
    """A wide integer is one pixel, whichever of its bytes is set."""
    for byte in range(8):
        masks = torch.zeros(1, 3, 21, dtype=torch.int64)
        masks[0, 0, 13] = masks[0, 1, 4] = masks[0, 2, 20] = 1 << (8 * byte)
        assert detops.masks_to_boxes(masks.to(device)).tolist() == [[4, 0, 20, 2]]


@settings(max_examples=60)
@given(st.data())
def test_any_mask_matches_the_reference(data):
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 90))
    pixels = data.draw(st.sets(st.integers(0, height * width - 1), max_size=5))
    mask = torch.zeros(height * width, dtype=data.draw(st.sampled_from([torch.bool, *FLOATING])))
    mask[list(pixels)] = 1
    mask = mask.view(1, height, width)
    for name in ("baseline", "auto"):
        detops._C.set_cpu_isa(name)
        assert torch.equal(detops.masks_to_boxes(mask), reference_masks.masks_to_boxes(mask))


def test_layouts_give_the_same_boxes_and_empty_masks_give_zeros(device):
    masks = blobs(12, 30, 50).to(device)
    expected = detops.masks_to_boxes(masks)
    assert torch.equal(detops.masks_to_boxes(masks.mT.contiguous().mT), expected)
    assert torch.equal(detops.masks_to_boxes(masks[::2]), expected[::2])
    wide = torch.zeros(12, 30, 60, dtype=torch.bool, device=device)
    wide[:, :, 3:53] = masks
    assert torch.equal(detops.masks_to_boxes(wide[:, :, 3:53]), expected)
    assert detops.masks_to_boxes(masks[:0]).shape == (0, 4)
    assert torch.equal(detops.masks_to_boxes(masks[:, :0]).cpu(), torch.zeros(12, 4))
    assert torch.equal(detops.masks_to_boxes(masks[:, :, :0]).cpu(), torch.zeros(12, 4))


def test_two_threads_give_the_same_boxes(two_threads):
    masks = blobs(64, 200, 300)
    first, second = two_threads(lambda: detops.masks_to_boxes(masks))
    assert torch.equal(first, second)
    assert torch.equal(first, torchvision.ops.masks_to_boxes(masks))


@pytest.mark.slow
def test_op_passes_opcheck_compiles_and_supports_vmap():
    masks = blobs(6, 20, 30)
    torch.library.opcheck(torch.ops.detops.masks_to_boxes.default, (masks,))
    compiled = torch.compile(
        detops.masks_to_boxes, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    assert torch.equal(compiled(masks), detops.masks_to_boxes(masks))
    stacked = masks.view(2, 3, 20, 30)
    batched = torch.vmap(detops.masks_to_boxes)(stacked)
    assert torch.equal(batched.flatten(0, 1), detops.masks_to_boxes(masks))


def test_boxes_do_not_require_gradients():
    masks = torch.rand(2, 4, 4, requires_grad=True)
    assert not detops.masks_to_boxes(masks).requires_grad


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (torch.zeros(3, 4), r"masks must be \[N, H, W\], got \[3, 4\]"),
        (torch.zeros(1, 3, 4, dtype=torch.cfloat), "masks must be bool.*got complex64"),
    ],
)
def test_errors_name_the_bad_argument(device, masks, message):
    with pytest.raises(RuntimeError, match=f"detops.masks_to_boxes: {message}"):
        detops.masks_to_boxes(masks.to(device))
