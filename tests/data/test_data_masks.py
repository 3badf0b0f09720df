# SPDX-License-Identifier: MIT
"""Segmentations and keypoints of COCO annotations."""

import json
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from detops.data import AnnotationError, CocoDetection, export_coco
from detops.data.masks import SegmentationError, decode_masks, encode_mask, encode_rows, to_rle
from detops.engine import coco_metrics

HEIGHT, WIDTH = 30, 40
MASK = np.zeros((HEIGHT, WIDTH), dtype=bool)
MASK[5:12, 3:20] = True
MASK[8:10, 6:9] = False
POLYGON = [[3, 5, 20, 5, 20, 12, 3, 12]]


def run_lengths(mask):
    """Returns the lengths of alternating runs of 0 and 1 down the columns."""
    counts, current, length = [], False, 0
    for pixel in mask.T.flatten().tolist():
        if pixel != current:
            counts, current, length = [*counts, length], pixel, 0
        length += 1
    return [*counts, length]


def decoded(segmentation):
    return decode_masks([to_rle(segmentation, HEIGHT, WIDTH)], HEIGHT, WIDTH)[0].numpy() > 0


def test_polygon_and_rle_forms_give_the_same_mask():
    size = [HEIGHT, WIDTH]
    compressed = encode_mask(MASK)
    assert compressed == json.loads(json.dumps(compressed))
    for counts in (run_lengths(MASK), compressed["counts"], compressed["counts"].encode()):
        assert np.array_equal(decoded({"size": size, "counts": counts}), MASK)
    filled = MASK.copy()
    filled[5:12, 3:20] = True
    assert np.array_equal(decoded(POLYGON), filled)
    two = [[0, 0, 4, 0, 4, 4, 0, 4], [10, 10, 14, 10, 14, 12, 10, 12]]
    assert decoded(two).sum() == 16 + 8


def test_decoding_no_masks_gives_an_empty_tensor():
    assert decode_masks([], 4, 5).shape == (0, 4, 5)


def compressed(counts):
    return {"size": [HEIGHT, WIDTH], "counts": counts}


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (None, "got NoneType"),
        ("text", "got str"),
        ([], "no polygon"),
        ([[]], "polygon 1 has 0 numbers"),
        ([[1, 2, 3, 4]], "has 4 numbers"),
        ([[1, 2, 3, 4, 5, 6, 7]], "has 7 numbers"),
        ([[1, 2, 3, 4, 5, float("nan")]], "polygon 1 is not a list of finite numbers"),
        ([POLYGON[0], [1, 2, 3, 4, 5, None]], "polygon 2 is not"),
        ([1, 2, 3, 4, 5, 6], "polygon 1 is not"),
        ([[1, 2, 81, 2, 50, 9]], "far outside the image: x from 1 to 81"),
        ([[1, -31, 5, 2, 5, 9]], "far outside the image: y from -31 to 9"),
        ([[3, 3, 3, 3, 3, 3]], "covers no pixel"),
        ({}, "size None"),
        ({"size": [WIDTH, HEIGHT], "counts": [0]}, r"size \[40, 30\]"),
        (compressed(None), "not non-negative integers"),
        (compressed([1, 2, -3]), "not non-negative integers"),
        (compressed([1.5, 1198.5]), "not non-negative integers"),
        (compressed([600, 601]), "add up to 1201"),
        (compressed([1200]), "covers no pixel"),
        (compressed("é"), "character"),
        (compressed("P"), "end within a number"),
        (compressed(""), "add up to 0"),
        (compressed(encode_mask(MASK)["counts"][:-1]), "run lengths"),
    ],
)
def test_broken_segmentation_raises(segmentation, message):
    with pytest.raises(SegmentationError, match=message):
        to_rle(segmentation, HEIGHT, WIDTH)


@settings(max_examples=60)
@given(st.text(st.characters(min_codepoint=40, max_codepoint=115), max_size=40))
def test_any_counts_text_is_a_mask_or_raises(text):
    try:
        rle = to_rle(compressed(text), HEIGHT, WIDTH)
    except SegmentationError:
        return
    decoded_by_pycocotools = coco_mask.decode({"size": [HEIGHT, WIDTH], "counts": text.encode()})
    assert np.array_equal(coco_mask.decode(rle), decoded_by_pycocotools)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_compressed_masks_of_pycocotools_are_decoded(seed):
    generator = np.random.default_rng(seed)
    mask = generator.random((HEIGHT, WIDTH)) < generator.random() ** 3
    if mask.any():
        assert np.array_equal(decoded(encode_mask(mask)), mask)


@pytest.fixture
def write(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50)).save(tmp_path / "a.png")

    def write(annotations, **changes):
        for number, annotation in enumerate(annotations, start=1):
            base = {"id": number, "image_id": 7, "category_id": 1, "bbox": [3, 5, 17, 7]}
            annotations[number - 1] = base | annotation
        data = {
            "images": [{"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}],
            "categories": [{"id": 1, "name": "cat", "keypoints": ["left_ear", "tail"]}],
            "annotations": annotations,
        }
        path = tmp_path / "data.json"
        path.write_text(json.dumps(data | changes))
        return path

    return write


def test_targets_have_masks_only_on_request(write):
    path = write([{"segmentation": encode_mask(MASK)}, {"segmentation": POLYGON}])
    target = CocoDetection(path, masks=True)[0][1]
    assert target["masks"].dtype == torch.uint8 and target["masks"].shape == (2, HEIGHT, WIDTH)
    assert np.array_equal(target["masks"][0].numpy() > 0, MASK)
    assert target["masks"].is_contiguous()
    without_masks = CocoDetection(path)
    assert "masks" not in without_masks[0][1]
    assert not any("segmentation" in a for a in without_masks.ground_truth()["annotations"])
    assert "masks" in CocoDetection(path, masks=None)[0][1]
    assert "masks" not in CocoDetection(write([{}]), masks=None)[0][1]
    empty = CocoDetection(write([]), masks=True, keypoints=True)[0][1]
    assert empty["masks"].shape == (0, HEIGHT, WIDTH) and empty["keypoints"].shape == (0, 2, 3)


def test_broken_masks_matter_only_if_masks_are_requested(write):
    path = write([{"segmentation": [[1, 2]]}, {}, {"segmentation": POLYGON}])
    with pytest.raises(
        AnnotationError, match=r"data\.json: 2 broken.*annotation 1: broken segmentation: polygon 1"
    ):
        CocoDetection(path, masks=True)
    dataset = CocoDetection(path, masks=True, on_error="skip")
    assert dataset.skipped == {"broken segmentation": 2}
    assert len(dataset[0][1]["masks"]) == 1
    assert len(CocoDetection(path)[0][1]["boxes"]) == 3


POINTS = [4, 6, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (None, "not finite numbers"),
        ([1, 2, 2], "expected 6 numbers, got 3"),
        ([1, 2, 2, 3, 4, float("inf")], "not finite numbers"),
        ([1, 2, 2, 3, 4, 5], "visibility is not 0, 1 or 2"),
    ],
)
def test_broken_keypoints_are_reported_or_skipped(write, points, message):
    path = write([{"keypoints": POINTS}, {"keypoints": points}])
    with pytest.raises(AnnotationError, match=f"annotation 2: .*{message}"):
        CocoDetection(path, keypoints=True)
    dataset = CocoDetection(path, keypoints=True, on_error="skip")
    assert dataset.keypoint_names == ("left_ear", "tail")
    assert dataset[0][1]["keypoints"].tolist() == [[[4, 6, 2], [0, 0, 0]]]
    assert "keypoints" not in CocoDetection(path)[0][1]


@pytest.mark.parametrize("points", [None, [], [1, 2], "x", [4, 6, 3, 0, 0, 0]])
def test_crowd_keypoints_are_kept_only_if_valid(write, points):
    path = write([{"iscrowd": 1, "keypoints": points}, {"keypoints": POINTS}, {"iscrowd": 1}])
    dataset = CocoDetection(path, keypoints=True)
    assert dataset[0][1]["keypoints"].shape == (1, 2, 3)
    truth = dataset.ground_truth()
    assert [a.get("keypoints") for a in truth["annotations"]] == [None, POINTS, None]
    found = [annotation | {"score": 0.5} for annotation in truth["annotations"][1:2]]
    metrics = coco_metrics(truth, found, iou_types=("keypoints",))
    assert metrics["keypoints"]["AP"] == pytest.approx(1)
    valid = CocoDetection(write([{"iscrowd": 1, "keypoints": POINTS}]), keypoints=True)
    assert valid.ground_truth()["annotations"][0]["keypoints"] == POINTS


def test_keypoints_require_a_category_that_names_them(write):
    path = write([], categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "x", "keypoints": 3}])
    with pytest.raises(AnnotationError, match="no category names any"):
        CocoDetection(path, keypoints=True)
    assert "keypoints" not in CocoDetection(path, keypoints=None)[0][1]


@pytest.mark.slow
def test_coco_export_is_read_back_unchanged(write, tmp_path):
    path = write([{"segmentation": POLYGON, "keypoints": POINTS}] * 2)
    source = CocoDetection(path, masks=True, keypoints=True)
    exported = CocoDetection(export_coco(source, tmp_path / "export"), masks=True, keypoints=True)
    (image, target), (image2, target2) = source[0], exported[0]
    assert torch.equal(image, image2) and exported.names == source.names
    assert all(
        torch.equal(target[key], target2[key]) for key in ("boxes", "labels", "masks", "keypoints")
    )


def row_runs(box):
    """Returns the run lengths of a mask, row by row, as in CVAT."""
    edges = np.flatnonzero(np.diff(box.ravel(), prepend=0, append=2))
    return np.diff(edges, prepend=0).tolist()


@pytest.mark.parametrize("density", [0, 0.02, 0.5, 0.98, 1])
def test_row_runs_encode_to_the_rle_of_the_full_mask(density):
    rng = np.random.default_rng(0)
    for _ in range(200):
        height, width = rng.integers(1, 9, 2).tolist()
        top, left = int(rng.integers(height)), int(rng.integers(width))
        h, w = int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1))
        mask = np.zeros((height, width), np.uint8)
        box = mask[top : top + h, left : left + w]
        box[:] = rng.random((h, w)) < density
        box[: rng.integers(h + 1)] = rng.integers(2)
        counts = row_runs(box)
        for equivalent_counts in (counts, [*counts, 0], [*counts[:1], 0, 0, *counts[1:]]):
            encoded = encode_rows(equivalent_counts, (left, top, w, h), height, width)
            assert encoded == encode_mask(mask)


def test_encoding_masks_of_a_large_image_takes_little_memory():
    side = 1 << 15
    for counts, box, area in (
        ([0, 1], (7, 9, 1, 1), 1),
        ([0, side * side], (0, 0, side, side), side * side),
        ([side + 3, side * side - 2 * side, side - 3], (0, 0, side, side), side * side - 2 * side),
    ):
        tracemalloc.start()
        rle = encode_rows(counts, box, side, side)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        tracemalloc.stop()
        assert coco_mask.area(rle) == area
