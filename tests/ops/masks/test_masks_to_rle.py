import json

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

import detops

SHAPES = [(1, 1), (1, 70), (70, 1), (7, 9), (13, 29), (64, 64), (65, 63), (3, 200), (200, 3)]


def kinds(height, width):
    """Yields masks of every kind, each [height, width]."""
    generator = torch.Generator().manual_seed(height * 1000 + width)
    y, x = torch.arange(height)[:, None], torch.arange(width)
    yield torch.zeros(height, width, dtype=torch.bool)
    yield torch.ones(height, width, dtype=torch.bool)
    yield (y + x) % 2 == 0
    yield (y + x) % 2 == 1
    yield (y % 2 == 0).expand(height, width)
    yield (x % 2 == 0).expand(height, width)
    for fraction in (0.01, 0.5, 0.99):
        yield torch.rand(height, width, generator=generator) < fraction
    yield ((y - height / 3) / height) ** 2 + ((x - width / 2) / width) ** 2 < 0.1
    for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        one = torch.zeros(height, width, dtype=torch.bool)
        one[corner] = True
        yield one


def layouts(masks):
    """Yields the same masks [N, H, W] in every layout."""
    count, height, width = masks.shape
    yield "contiguous", masks.contiguous()
    yield "columns", masks.mT.contiguous().mT
    yield "masks last", masks.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    yield "masks last, columns", masks.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    wide = torch.ones(count + 1, height + 3, width + 5, dtype=masks.dtype)
    wide[1:, 2:-1, 4:-1] = masks
    yield "part of rows", wide[1:, 2:-1, 4:-1]
    yield "part of columns", wide.mT.contiguous().mT[1:, 2:-1, 4:-1]
    yield "every second pixel", masks.repeat_interleave(2, 2)[:, :, ::2]


def expected(mask):
    encoded = coco.encode(np.asfortranarray(mask.numpy().view(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_rle_matches_pycocotools(isa, device, dtype, shape):
    masks = torch.stack(list(kinds(*shape))).to(dtype)
    expected_rles = [expected(mask) for mask in masks]
    for name, view in layouts(masks):
        assert detops.masks_to_rle(view.to(device)) == expected_rles, name


def test_large_masks_match_pycocotools_on_two_threads(isa, two_threads):
    y, x = torch.arange(600)[:, None], torch.arange(901)
    noise = torch.rand(600, 901, generator=torch.Generator().manual_seed(0)) > 0.5
    masks = torch.stack([((y - 300) ** 2 + (x - 450) ** 2) < r * r for r in (1, 90, 400)] + [noise])
    expected_rles = [expected(mask) for mask in masks]
    for view in (masks, masks.mT.contiguous().mT):
        for encoded in two_threads(lambda: detops.masks_to_rle(view)):  # noqa: B023
            assert encoded == expected_rles


@pytest.mark.parametrize("values", [(0, 255), (1, 2), (0, 1, 2, 3)])
def test_run_ends_where_the_value_changes(values):
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, len(values), (40, 90), generator=generator)
    mask = torch.tensor(values, dtype=torch.uint8)[index]
    for view in (mask, mask.t().contiguous().t()):
        assert detops.masks_to_rle(view[None]) == [expected(mask)]


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 5), (2, 5, 0), (2, 0, 0)])
def test_masks_without_pixels_match_pycocotools(shape, device):
    masks = torch.zeros(shape, dtype=torch.bool)
    assert detops.masks_to_rle(masks.to(device)) == [expected(mask) for mask in masks]


def test_pycocotools_decodes_the_same_masks(device):
    masks = torch.rand(5, 13, 29, generator=torch.Generator().manual_seed(0)) > 0.6
    encoded = json.loads(json.dumps(detops.masks_to_rle(masks.to(device))))
    assert [e["size"] for e in encoded] == [[13, 29]] * 5
    assert np.array_equal(coco.decode(encoded).transpose(2, 0, 1), masks.numpy())


def lengths(counts):
    """Decodes the run lengths from the text, by its definition."""
    found, value, shift = [], 0, 0
    for letter in counts:
        group = ord(letter) - 48
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            if group & 16:
                value -= 1 << shift
            found.append(value + (found[-2] if len(found) > 2 else 0))
            value, shift = 0, 0
    return found


def test_masks_encode_beyond_int32_pixels_and_raise_beyond_uint32():
    """All rows, or all columns, share memory, which avoids a mask of gigabytes."""
    row = torch.zeros(1, 1, 50_000, dtype=torch.bool)
    row[..., 10:20] = True
    (encoded,) = detops.masks_to_rle(row.expand(1, 48_000, 50_000))
    assert lengths(encoded["counts"]) == [480_000, 480_000, 48_000 * 49_980]
    (encoded,) = detops.masks_to_rle(row.mT.expand(1, 50_000, 48_000))
    assert lengths(encoded["counts"]) == [10, *[10, 49_990] * 47_999, 10, 49_980]
    with pytest.raises(
        RuntimeError, match="detops.masks_to_rle: a mask must have at most 42949672"
    ):
        detops.masks_to_rle(row[..., :1].expand(1, 65536, 65536))


def test_errors_name_the_bad_argument():
    with pytest.raises(
        RuntimeError, match="detops.masks_to_rle: masks must be bool or uint8, got float32"
    ):
        detops.masks_to_rle(torch.zeros(1, 2, 3))
    with pytest.raises(RuntimeError, match=r"must be \[N, H, W\], got \[2, 3\]"):
        detops.masks_to_rle(torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(
        RuntimeError, match="detops.masks_to_rle: masks must be strided, got torch.sparse_coo"
    ):
        detops.masks_to_rle(torch.zeros(1, 2, 3, dtype=torch.bool).to_sparse())


@pytest.mark.slow
def test_compiled_function_breaks_its_graph_for_the_op():
    def call(masks):
        return detops.masks_to_rle(masks ^ True)

    masks = torch.rand(2, 9, 11, generator=torch.Generator().manual_seed(0)) > 0.5
    assert torch.compile(call, backend="aot_eager")(masks) == call(masks)
