"""mask_nms, and mask_iou of masks of any size; contracts test the rest of both."""

import pytest
import reference_masks as reference
import torch

import detops
from detops.bench.mask_iou import plain_mask_iou, plain_mask_nms

# One pixel, less than a word, a word, one pixel more, and around the ends of vectors and tiles.
SIZES = [(1, 1), (3, 5), (8, 8), (5, 13), (1, 512), (27, 19), (64, 128), (8193, 1), (90, 111)]


def random_masks(count, height, width, fraction=0.5, seed=0):
    """Returns random masks. Some are empty, full, or set only in some rows."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(count, height, width, generator=generator) < fraction
    masks[1::5, : height // 2] = False
    masks[2::5, height // 3 :] = False
    if count > 5:
        masks[3], masks[4], masks[5] = False, True, False
        masks[5, -1, -1] = True  # in the last of several tiles
    return masks


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("counts", [(1, 1), (7, 10), (3, 1), (18, 5)])
def test_mask_iou_matches_the_reference(isa, device, size, counts):
    first, second = (random_masks(n, *size, seed=n) for n in counts)
    for mode in ("iou", "iof"):
        found = detops.mask_iou(first.to(device), second.to(device), mode)
        assert found.dtype == torch.float32
        assert torch.equal(found.cpu(), reference.mask_iou(first, second, mode))
    one = first.to(device)
    assert torch.equal(detops.mask_iou(one, one).cpu(), reference.mask_iou(first, first))


PAIRS = {"several rows at a time": (900, 700), "a row at a time": (2, 300_000)}


@pytest.mark.parametrize("variant", PAIRS)
def test_more_pairs_than_one_batch_match_the_benchmark_baseline(device, two_threads, variant):
    first, second = (random_masks(n, 9, 3, seed=n) for n in PAIRS[variant])
    one, two = two_threads(lambda: detops.mask_iou(first.to(device), second.to(device)).cpu())
    assert torch.equal(one, plain_mask_iou(first, second)) and torch.equal(one, two)


def test_every_pixel_position_is_counted(isa, device):
    """Covers each position in a vector, a word and a remainder, and every value of a byte."""
    pixels = torch.eye(3 * 157, dtype=torch.bool).view(-1, 3, 157)
    ours = detops.mask_iou(pixels.to(device), pixels.flip(0).to(device))
    assert torch.equal(ours.cpu(), torch.eye(3 * 157).flip(1))
    bits = torch.tensor([[n >> i & 1 for i in range(8)] for n in range(256)]).bool()
    masks = bits[:, None].repeat(1, 33, 1)
    full = detops.mask_iou(masks[255:].to(device), masks.to(device))[0]
    assert torch.equal(full.cpu(), (bits.sum(1).double() / 8).float())


def test_every_nonzero_uint8_value_counts_as_set(isa, device):
    values = torch.arange(256, dtype=torch.uint8).view(256, 1, 1).repeat(1, 5, 17)
    one = torch.ones(1, 5, 17, dtype=torch.bool)
    found = detops.mask_iou(values.to(device), one.to(device))
    assert found[0, 0] == 0 and (found[1:] == 1).all()


def test_modes_match_pycocotools():
    coco = pytest.importorskip("pycocotools.mask")
    first, second = random_masks(12, 40, 61, seed=1), random_masks(9, 40, 61, seed=2)
    codes = [detops.masks_to_rle(m) for m in (first, second)]
    crowd = [j % 2 for j in range(9)]
    expected = torch.from_numpy(coco.iou(*codes, crowd))
    for j in range(9):
        ours = detops.mask_iou(first, second[j : j + 1], ("iou", "iof")[crowd[j]])[:, 0]
        # pycocotools divides 0 by 0 if both masks are empty.
        torch.testing.assert_close(ours, expected[:, j].nan_to_num(0).float(), rtol=1e-7, atol=0)


def test_benchmark_baselines_match_mask_ops():
    masks = random_masks(20, 30, 41)
    torch.testing.assert_close(detops.mask_iou(masks, masks[:7]), plain_mask_iou(masks, masks[:7]))
    scores = torch.rand(20)
    assert torch.equal(detops.mask_nms(masks, scores, 0.3), plain_mask_nms(masks, scores, 0.3))


@pytest.mark.parametrize("shapes", [(0, 3, 9, 7), (4, 0, 9, 7), (4, 3, 0, 7), (4, 3, 9, 0)])
def test_masks_without_pixels_do_not_overlap(device, poison, shapes):
    n, m, height, width = shapes
    first = torch.ones(n, height, width, dtype=torch.bool, device=device)
    second = torch.ones(m, height, width, dtype=torch.bool, device=device)
    for mode in ("iou", "iof"):
        found = detops.mask_iou(first, second, mode)
        assert found.shape == (n, m) and (found == (height * width > 0)).all()
    assert detops.mask_nms(first, torch.zeros(n, device=device), 0.5).tolist() == (
        list(range(n)) if height * width == 0 else [0][:n]
    )


def test_mask_nms_of_many_objects_matches_the_benchmark_baseline(isa, device):
    """Many masks lie close together, exceed a tile, and fill more than one CUDA chunk."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(600, 2, generator=generator) * 60
    boxes = torch.cat([corner, corner + 20 + 30 * torch.rand(600, 2, generator=generator)], 1)
    masks = detops.paste_masks_in_image(torch.ones(600, 1, 7, 7), boxes, (120, 110))
    scores = torch.rand(600, generator=generator)
    for threshold in (0.3, 0.7):
        found = detops.mask_nms(masks.to(device), scores.to(device), threshold)
        assert torch.equal(found.cpu(), plain_mask_nms(masks, scores, threshold))


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    masks, scores = random_masks(60, 200, 300, 0.1), torch.rand(60)
    for call in (
        lambda: detops.mask_iou(masks, masks[:50]),
        lambda: detops.mask_nms(masks, scores, 0.02),
    ):
        one, two = two_threads(call)
        assert torch.equal(one, two)
