import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection import roi_heads as torchvision_heads

import detops
from detops.bench.heatmaps_to_keypoints import plain_heatmaps_to_keypoints

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Sides within a pixel, of a vector's width and one pixel more or less, and of more than 16 pixels
# per cell. They are exact, like the corners: rounding would decide the number of pixels.
SIDES = torch.tensor(
    [[0.25, 5], [8, 9], [7.125, 16], [14, 14], [17, 1], [60.5, 31], [90, 200], [290, 3]]
)


def example(dtype=torch.float32, cells=(14, 18), keypoints=3):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(len(SIDES), keypoints, *cells, generator=generator, dtype=torch.float64)
    corner = torch.randint(0, 800, (len(SIDES), 2), generator=generator).double() / 8
    return maps.to(dtype), torch.cat([corner, corner + SIDES], 1)


def cubic(t):
    t = abs(t)
    if t <= 1:
        return 1.25 * t**3 - 2.25 * t**2 + 1
    return -0.75 * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def enlarge(cells, width, height):
    """Computes every pixel from every cell. A cell beyond the border repeats the border cell."""
    matrices = []
    for pixels, size in ((height, cells.size(0)), (width, cells.size(1))):
        matrix = torch.zeros(pixels, size, dtype=torch.float64)
        for i in range(pixels):
            for cell in range(-2, size + 2):
                weight = cubic((i + 0.5) * size / pixels - 0.5 - cell)
                matrix[i, min(max(cell, 0), size - 1)] += weight
        matrices.append(matrix)
    return matrices[0] @ cells.double() @ matrices[1].T


def reference(maps, boxes):
    """Returns the position and value of each largest pixel, and all pixels."""
    points, scores, pixels = [], [], []
    for cells, (x1, y1, x2, y2) in zip(maps, boxes.tolist(), strict=True):
        wide_side, high_side = max(1, x2 - x1), max(1, y2 - y1)
        pixel_width = min(math.ceil(wide_side), 16 * maps.size(3))
        pixel_height = min(math.ceil(high_side), 16 * maps.size(2))
        for heatmap in cells:
            value = enlarge(heatmap, pixel_width, pixel_height)
            at = int(value.argmax())
            x, y = (
                (at % pixel_width + 0.5) * wide_side / pixel_width,
                (at // pixel_width + 0.5) * high_side / pixel_height,
            )
            points.append([x1 + x, y1 + y, 1.0])
            scores.append(float(value.max()))
            pixels.append(value)
    each = maps.shape[:2]
    return torch.tensor(points).view(*each, 3), torch.tensor(scores).view(each), pixels


def test_keypoints_match_the_reference(isa, device):
    """Runs in float64, where any two pixels differ by more than rounding."""
    maps, boxes = example(torch.float64)
    boxes[4, 2:] = boxes[4, :2] - 3  # inverted
    points, scores = detops.heatmaps_to_keypoints(maps.to(device), boxes.to(device))
    assert points.dtype == scores.dtype == torch.float64
    expected, best, _ = reference(maps, boxes)
    torch.testing.assert_close(points.cpu().float(), expected)
    torch.testing.assert_close(scores.cpu().float(), best)


@cache
def best_scores(dtype, cells):
    maps, boxes = example(dtype, cells)
    return reference(maps, boxes.float())[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cells", [(1, 1), (3, 2), (14, 18), (56, 56)])
def test_scores_match_the_reference_in_every_dtype(isa, device, dtype, cells):
    """The score equals the largest pixel up to rounding."""
    maps, boxes = example(dtype, cells)
    boxes = boxes.float()
    points, scores = detops.heatmaps_to_keypoints(maps.to(device), boxes.to(device))
    assert (points.dtype, scores.dtype) == (torch.float32, dtype)
    best = best_scores(dtype, cells)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype.itemsize > 2 else {}
    torch.testing.assert_close(scores.cpu(), best.to(dtype), **tolerance)
    wide_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    in_wide_dtype, _ = detops.heatmaps_to_keypoints(maps.to(device, wide_dtype), boxes.to(device))
    assert torch.equal(points, in_wide_dtype)


def test_torchvision_and_benchmark_baseline_match_the_op():
    maps, boxes = example(torch.float64, (14, 14))
    boxes = boxes[:-1]  # the last has more than 16 pixels per cell
    ours = detops.heatmaps_to_keypoints(maps[:-1], boxes)
    plain = plain_heatmaps_to_keypoints(maps[:-1], boxes)
    theirs = torchvision_heads.heatmaps_to_keypoints(maps[:-1], boxes)
    for a, b, c in zip(ours, plain, theirs, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.float(), c)


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "expanded"])
def test_every_layout_gives_the_same_keypoints(device, layout):
    maps, boxes = (t.to(device) for t in example(cells=(14, 14)))
    if layout == "expanded":
        maps = maps[:1].expand(len(boxes), -1, -1, -1)
    expected = detops.heatmaps_to_keypoints(maps.contiguous(), boxes)
    if layout == "channels_last":
        maps = maps.to(memory_format=torch.channels_last)
    elif layout == "transposed":
        maps, boxes = maps.mT.contiguous().mT, boxes.T.contiguous().T
    elif layout == "strided":
        maps, boxes = maps.repeat_interleave(2, 3)[..., ::2], boxes.repeat_interleave(3, 0)[::3]
    found = detops.heatmaps_to_keypoints(maps, boxes)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5), (2, 0, 4, 5), (0, 0, 1, 1)])
def test_empty_maps_give_empty_results(device, sizes):
    maps = torch.zeros(sizes, device=device)
    points, scores = detops.heatmaps_to_keypoints(maps, torch.zeros(sizes[0], 4, device=device))
    assert points.shape == (*sizes[:2], 3) and scores.shape == sizes[:2]


def test_first_of_equal_pixels_is_the_keypoint(isa, device):
    maps = torch.ones(2, 1, 4, 4, device=device)
    maps[1] = -INF
    boxes = torch.tensor([[0.0, 0, 4, 4], [8, 8, 12, 12]], device=device)
    points, scores = detops.heatmaps_to_keypoints(maps, boxes)
    assert points[:1].tolist() == [[[0.5, 0.5, 1]]] and scores[0] == 1
    two = torch.zeros(1, 1, 4, 40, device=device)
    two[0, 0, 2, [37, 21]] = 3
    points, scores = detops.heatmaps_to_keypoints(two, torch.tensor([[0.0, 0, 40, 4]]).to(device))
    assert points.tolist() == [[[21.5, 2.5, 1]]] and scores == 3


@pytest.mark.parametrize("bad_value", [NAN, INF, -INF])
def test_nonfinite_cell_gives_nan_score_only_to_its_heatmap(isa, device, bad_value):
    """The first NaN pixel counts as the largest, and other heatmaps keep their results."""
    maps, boxes = (t.to(device) for t in example())
    expected = detops.heatmaps_to_keypoints(maps, boxes)
    maps[3, 1, 7, 7] = bad_value
    points, scores = detops.heatmaps_to_keypoints(maps, boxes)
    assert scores[3, 1].isnan()
    # 14 x 14 pixels: rows are cells, and each pixel weights four of 18 columns.
    assert points[3, 1, 1] == boxes[3, 1] + 5.5
    others = torch.ones(maps.shape[:2], dtype=torch.bool)
    others[3, 1] = False
    assert torch.equal(points[others], expected[0][others])
    assert torch.equal(scores[others], expected[1][others])


def test_nonfinite_boxes_give_finite_scores(isa, device):
    maps = torch.randn(4, 2, 5, 5, device=device)
    boxes = [[NAN, 0, 5, 5], [0, 0, INF, 5], [-INF, 0, INF, 5], [3e38, 0, -3e38, 5]]
    points, scores = detops.heatmaps_to_keypoints(maps, torch.tensor(boxes, device=device))
    assert scores.isfinite().all() and (points[..., 1] <= 5).all() and (points[..., 2] == 1).all()
    assert points[0, :, 0].isnan().all() and not points[1:3, :, 0].isfinite().any()
    assert (points[3, :, 0] == 3e38).all()


def test_threads_give_the_same_bits(two_threads):
    maps, boxes = example(keypoints=17)
    results = two_threads(lambda: detops.heatmaps_to_keypoints(maps, boxes))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_results_do_not_require_gradients(device):
    maps, boxes = (t.to(device).requires_grad_() for t in example())
    assert not any(t.requires_grad for t in detops.heatmaps_to_keypoints(maps, boxes))


@settings(max_examples=40)
@given(st.data())
def test_any_size_matches_the_reference(data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    sides = [data.draw(st.floats(-1, 200)) for _ in range(2)]
    maps = torch.randn(1, 2, height, width, dtype=torch.float64)
    boxes = torch.tensor([[3.0, 4, 3 + sides[0], 4 + sides[1]]], dtype=torch.float64)
    points, scores = detops.heatmaps_to_keypoints(maps, boxes)
    _, best, pixels = reference(maps, boxes)
    torch.testing.assert_close(scores.float(), best)
    for (x, y, _), value, score in zip(points[0].tolist(), pixels, best[0], strict=True):
        pixel_height, pixel_width = value.shape
        column = (x - 3) / max(1, boxes[0, 2] - 3) * pixel_width
        row = (y - 4) / max(1, boxes[0, 3] - 4) * pixel_height
        torch.testing.assert_close(value[int(row), int(column)].float(), score)


BAD_VALUES = {
    "maps must be": (torch.zeros(2, 3, 4), torch.zeros(2, 4)),
    "boxes must be": (torch.zeros(2, 3, 4, 4), torch.zeros(3, 4)),
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_errors_name_the_argument_of_wrong_shape(message):
    with pytest.raises(RuntimeError, match=f"detops.heatmaps_to_keypoints: {message}"):
        detops.heatmaps_to_keypoints(*BAD_VALUES[message])
