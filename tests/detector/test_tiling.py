# SPDX-License-Identifier: MIT
"""Cutting images into tiles and merging their detections."""

import pytest
import torch

from detops.data import cut_tiles, merge_detections, tile_origins


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 100, 129, 1000])
@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.9])
def test_tile_origins_cover_the_side(length, overlap):
    origins = tile_origins(length, 64, overlap)
    assert origins[0] == 0 and origins[-1] == max(0, length - 64)
    steps = [b - a for a, b in zip(origins, origins[1:], strict=False)]
    assert all(0 < step <= 64 * (1 - overlap) for step in steps)


@pytest.mark.parametrize("size", [(1, 1), (5, 90), (64, 64), (100, 65), (90, 203)])
def test_tiles_cover_the_image(size):
    height, width = size
    covered = torch.zeros(size, dtype=torch.int64)
    tiles = cut_tiles(height, width, 64)
    for x1, y1, x2, y2 in tiles:
        assert 0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height
        assert x2 - x1 == min(64, width) and y2 - y1 == min(64, height)
        covered[y1:y2, x1:x2] += 1
    assert covered.min() >= 1
    assert len(set(tiles)) == len(tiles)


def test_small_image_is_a_single_tile():
    assert cut_tiles(20, 30, 64) == [(0, 0, 30, 20)]


@pytest.mark.parametrize("arguments", [(0, 5), (5, 0), (5, 5, 1.0), (5, 5, -0.1)])
def test_tile_origins_rejects_invalid_arguments(arguments):
    with pytest.raises(ValueError, match="tile_origins: expected"):
        tile_origins(*arguments)


def perfect_detections(tile, objects):
    """Returns the detections of a perfect detector in a tile: every object, cut to the tile."""
    x1, y1, x2, y2 = tile
    boxes = objects.clone()
    boxes[:, 0::2] = boxes[:, 0::2].clamp(x1, x2) - x1
    boxes[:, 1::2] = boxes[:, 1::2].clamp(y1, y2) - y1
    found = (boxes[:, 2:] > boxes[:, :2]).all(1)
    boxes = boxes[found]
    scores = 0.9 - 0.001 * torch.arange(len(objects))[found]
    return {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64), "scores": scores}


def test_every_object_is_found_once():
    """Objects no wider than the overlap lie everywhere, also at borders and corners of tiles."""
    height, width = 150, 171
    x, y = torch.meshgrid(torch.arange(0, 160, 20), torch.arange(0, 140, 20), indexing="xy")
    corner = torch.stack([x.flatten(), y.flatten()], 1).float()
    objects = torch.cat([corner, corner + 15], 1)
    tiles = cut_tiles(height, width, 64, 0.3)
    merged = merge_detections(
        [perfect_detections(t, objects) for t in tiles], tiles, (height, width)
    )
    assert len(merged["boxes"]) == len(objects)
    order = (merged["boxes"][:, 1] * 1000 + merged["boxes"][:, 0]).argsort()
    expected = objects[(objects[:, 1] * 1000 + objects[:, 0]).argsort()]
    assert torch.equal(merged["boxes"][order], expected)
    assert (merged["scores"].diff() <= 0).all()


def test_object_larger_than_the_overlap_survives():
    objects = torch.tensor([[30.0, 10.0, 90.0, 60.0]])
    tiles = cut_tiles(64, 128, 64, 0.25)
    merged = merge_detections([perfect_detections(t, objects) for t in tiles], tiles, (64, 128))
    assert len(merged["boxes"]) >= 1


@pytest.mark.parametrize("width", [12.0, 14.0, 15.0, 16.0, 17.0, 18.0, 20.0])
def test_object_as_wide_as_the_overlap_survives(width):
    """The object nearly touches the border in both tiles."""
    tiles = cut_tiles(64, 112, 64, 0.25)
    objects = torch.tensor([[56 - width / 2, 10.0, 56 + width / 2, 30.0]])
    merged = merge_detections([perfect_detections(t, objects) for t in tiles], tiles, (64, 112))
    assert len(merged["boxes"]) >= 1


def expected_boxes(detections, tiles, size, margin):
    """Returns the boxes that `merge_detections` keeps when NMS suppresses none."""

    def inside(box, tile, margin):
        far_from_cuts = []
        for side in (0, 1):
            low, high, end = tile[side], tile[side + 2], size[1 - side]
            far_from_cuts.append(box[side] > (low + margin if low > 0 else -margin))
            far_from_cuts.append(box[side + 2] < (high - margin if high < end else end + margin))
        return all(far_from_cuts)

    kept = []
    for found, own_tile in zip(detections, tiles, strict=True):
        for box in (found["boxes"] + torch.tensor(own_tile[:2]).repeat(2)).tolist():
            complete_elsewhere = [
                inside(box, tile, 2 * margin) for tile in tiles if tile != own_tile
            ]
            if inside(box, own_tile, margin) or not any(complete_elsewhere):
                kept.append(box)
    return torch.tensor(kept).reshape(-1, 4)


@pytest.mark.parametrize("seed", range(20))
def test_merging_drops_cut_boxes_like_a_slow_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    size, tile = torch.randint(30, 150, (2,), generator=generator).tolist(), 40
    tiles = cut_tiles(*size, tile, 0.25 + 0.02 * seed)
    tiles += tiles[: seed % 2]  # every other seed repeats a tile
    detections = []
    for _ in tiles:
        corner = torch.randint(0, tile, (5, 2), generator=generator)
        boxes = torch.cat([corner, corner + torch.randint(1, 20, (5, 2), generator=generator)], 1)
        boxes = boxes.float().clamp(max=tile)
        scores = torch.rand(5, generator=generator)
        detections.append({"boxes": boxes, "labels": torch.ones(5).long(), "scores": scores})
    for margin in (2.0, 0.0, 5.0):
        expected = expected_boxes(detections, tiles, size, margin)
        expected[:, 0::2].clamp_(0, size[1])
        expected[:, 1::2].clamp_(0, size[0])
        expected = expected[(expected[:, 2:] > expected[:, :2]).all(1)]
        boxes = merge_detections(detections, tiles, size, 1.0, margin)["boxes"]
        assert sorted(boxes.tolist()) == sorted(expected.tolist())


def test_merging_separates_classes_and_clips_boxes():
    found = {
        "boxes": torch.tensor([[-3.0, 2.0, 20.0, 20.0], [-3.0, 2.0, 20.0, 20.0]]),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.5, 0.7]),
    }
    merged = merge_detections([found], [(0, 0, 18, 64)], (64, 18))
    assert merged["labels"].tolist() == [2, 1]
    assert merged["boxes"].tolist() == [[0, 2, 18, 20]] * 2


def test_merging_accepts_empty_detections():
    empty = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "scores": torch.zeros(0),
    }
    tiles = cut_tiles(100, 100, 64)
    merged = merge_detections([empty] * len(tiles), tiles, (100, 100))
    assert merged["boxes"].shape == (0, 4)
    with pytest.raises(ValueError, match="one dict per tile"):
        merge_detections([empty], tiles, (100, 100))


def test_tile_masks_are_pasted_into_the_image():
    """One object lies in both tiles, complete only in the second; another in the first."""
    tiles = [(0, 0, 20, 16), (10, 0, 30, 16)]
    first, second = torch.zeros(2, 1, 20, 20), torch.zeros(1, 1, 20, 20)  # padded to a tile
    first[0, 0, 2:8, 15:20] = first[1, 0, 3:5, 1:4] = second[0, 0, 2:8, 5:14] = 1
    found = [
        {
            "boxes": torch.tensor([[15.0, 2, 20, 8], [1, 3, 4, 5]]),
            "labels": torch.tensor([1, 1]),
            "scores": torch.tensor([0.9, 0.5]),
            "masks": first.bool(),
        },
        {
            "boxes": torch.tensor([[5.0, 2, 14, 8]]),
            "labels": torch.tensor([1]),
            "scores": torch.tensor([0.8]),
            "masks": second.bool(),
        },
    ]
    merged = merge_detections(found, tiles, (16, 30))
    assert merged["boxes"].tolist() == [[15, 2, 24, 8], [1, 3, 4, 5]]
    expected = torch.zeros(2, 1, 16, 30, dtype=torch.bool)
    expected[0, 0, 2:8, 15:24] = expected[1, 0, 3:5, 1:4] = True
    assert torch.equal(merged["masks"], expected)
    empty = [{key: value[:0] for key, value in each.items()} for each in found]
    assert merge_detections(empty, tiles, (16, 30))["masks"].shape == (0, 1, 16, 30)


def test_keypoints_come_from_the_kept_tile():
    tiles = cut_tiles(64, 160, 64, 0.25)
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, _ in enumerate(tiles):
        count = number % 3
        boxes = torch.rand(count, 2, generator=generator) * 30 + 10
        found.append(
            {
                "boxes": torch.cat([boxes, boxes + 9], dim=1),
                "labels": torch.arange(count) + 1,
                "scores": torch.rand(count, generator=generator),
                "keypoints": torch.cat([boxes + 1, torch.full((count, 1), 1.0)], 1)[:, None],
                "keypoints_scores": torch.rand(count, 1, generator=generator),
            }
        )
    merged = merge_detections(found, tiles, (64, 160))
    assert len(merged["scores"]) == sum(len(each["scores"]) for each in found) > 2
    # Each point stays one pixel inside the corner of its box.
    expected = torch.cat([merged["boxes"][:, :2] + 1, torch.ones(len(merged["boxes"]), 1)], 1)
    assert torch.allclose(merged["keypoints"][:, 0], expected)
    points_by_score = {
        float(score): point
        for each in found
        for score, point in zip(each["scores"], each["keypoints_scores"], strict=True)
    }
    for score, points in zip(merged["scores"], merged["keypoints_scores"], strict=True):
        assert torch.equal(points_by_score[float(score)], points)
    empty = merge_detections(
        [{k: v[:0] for k, v in each.items()} for each in found], tiles, (64, 160)
    )
    assert empty["keypoints"].shape == (0, 1, 3) and empty["keypoints_scores"].shape == (0, 1)
