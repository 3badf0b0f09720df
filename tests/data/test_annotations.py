# SPDX-License-Identifier: MIT
"""Annotations from other tools: corrections, skipped objects and errors."""

import codecs
import json

import numpy as np
import pytest
import torch
from PIL import Image

from detops import cli
from detops.data import AnnotationError, CocoDetection, VocDetection, open_dataset
from detops.data.masks import SegmentationError, encode_mask, to_rle

WIDTH, HEIGHT = 40, 30


def annotation(number=1, **changes):
    return {"id": number, "image_id": 7, "category_id": 1, "bbox": [1, 2, 10, 5]} | changes


@pytest.fixture
def write(tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "a.png")

    def write(*annotations, image=None, name="data.json", bom=b""):
        record = {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}
        data = {
            "images": [record if image is None else image],
            "categories": [{"id": 1, "name": "cat"}],
            "annotations": list(annotations),
        }
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bom + json.dumps(data).encode())
        return path

    return write


def test_category_name_must_be_nonblank_text_or_number(write):
    path = write(annotation())
    for name in (["cat"], {"a": "b" * 1000}, None, "", " \t"):
        data = json.loads(path.read_text())
        data["categories"][0]["name"] = name
        path.write_text(json.dumps(data))
        with pytest.raises(AnnotationError, match=r"\[0\]: expected a name.* got .{,83}$"):
            CocoDetection(path)


@pytest.mark.parametrize(
    ("box", "clipped", "counted"),
    [
        ([-1, 2, 11, 5], [0, 2, 10, 7], 1),
        ([30, 20, 20, 5], [30, 20, 40, 25], 1),
        ([-5, -5, 100, 100], [0, 0, 40, 30], 1),
        ([30, 20, 11, 5], [30, 20, 40, 25], 1),
        # Within rounding: clipped, but not counted.
        ([30.3, 20, 10, 5], [30.3, 20, 40, 25], 0),
        ([0, 0, 40, 30], [0, 0, 40, 30], 0),
    ],
)
def test_boxes_are_clipped_to_the_image(write, box, clipped, counted):
    dataset = CocoDetection(write(annotation(bbox=box), annotation(2)))
    assert dataset[0][1]["boxes"].tolist() == torch.tensor([clipped, [1, 2, 11, 7]]).tolist()
    assert dataset.mended.total() == counted and not dataset.skipped
    x, y, w, h = dataset.ground_truth()["annotations"][0]["bbox"]
    assert x >= 0 and y >= 0 and x + w <= WIDTH and y + h <= HEIGHT


@pytest.mark.parametrize("box", [[40, 2, 3, 5], [-9, 2, 9, 5], [1, 31, 3, 5], [1e9, 1e9, 1, 1]])
def test_boxes_outside_the_image_are_skipped(write, box):
    dataset = CocoDetection(write(annotation(bbox=box), annotation(2)))
    assert dataset.skipped == {"box outside the image": 1}
    assert dataset[0][1]["boxes"].tolist() == [[1, 2, 11, 7]]
    # Such boxes do not fail the dataset, but other broken annotations do.
    with pytest.raises(AnnotationError, match="1 broken.*annotation 2: zero area"):
        CocoDetection(write(annotation(bbox=box), annotation(2, bbox=[1, 1, 0, 4])))


def test_zero_based_voc_boxes_are_clipped_to_the_image(tmp_path):
    for folder in ("Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "JPEGImages" / "a.jpg")
    boxes = ((0, 0, 10, 9), (5, 6, 41, 30), (41, 6, 50, 9))
    objects = "".join(
        f"<object><name>cat</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax>"
        f"<ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
    path = tmp_path / "Annotations" / "a.xml"
    path.write_bytes(codecs.BOM_UTF8 + f"<annotation>{size}{objects}</annotation>".encode())
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/train.txt").write_bytes(codecs.BOM_UTF8 + b"a\n")
    dataset = VocDetection(tmp_path)
    assert dataset[0][1]["boxes"].tolist() == [[0, 0, 10, 9], [4, 5, 40, 30]]
    assert dataset.mended == {"box clipped to its image": 2}
    assert dataset.skipped == {"box outside the image": 1}


def test_coco_file_may_begin_with_a_byte_order_mark(write):
    assert len(CocoDetection(write(annotation(), bom=codecs.BOM_UTF8))[0][1]["boxes"]) == 1
    assert len(open_dataset(write(annotation(), bom=codecs.BOM_UTF8))) == 1


def test_coco_export_of_cvat_finds_its_images(write, tmp_path):
    path = write(annotation(), name="annotations/instances_default.json")
    (tmp_path / "images/default").mkdir(parents=True)
    (tmp_path / "a.png").rename(tmp_path / "images/default/a.png")
    for spec in (path, tmp_path):
        assert open_dataset(spec).image_path(0) == tmp_path / "images/default/a.png"


def test_windows_separators_in_file_names_are_resolved(write, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "a.png").rename(tmp_path / "train/b.png")
    image = {"id": 7, "file_name": r"train\b.png", "width": WIDTH, "height": HEIGHT}
    dataset = CocoDetection(write(image=image))
    assert dataset.image_path(0) == tmp_path / "train/b.png" and len(dataset[0]) == 2
    # Where a backslash is no separator, a file name may contain one.
    (tmp_path / "train/b.png").rename(tmp_path / r"train\b.png")
    assert CocoDetection(write(image=image)).image_path(0) == tmp_path / r"train\b.png"


@pytest.mark.parametrize("sizes", [{}, {"width": None, "height": None}, {"width": 3}])
@pytest.mark.parametrize("check", ["exists", "header", "decode"])
def test_missing_image_sizes_are_read_from_the_files(write, tmp_path, sizes, check):
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.new("RGB", (HEIGHT, WIDTH)).save(tmp_path / "turned.jpg", exif=rotated)
    for name in ("a.png", "turned.jpg"):
        path = write(annotation(bbox=[30, 20, 20, 20]), image={"id": 7, "file_name": name} | sizes)
        dataset = CocoDetection(path, check=check)
        assert (dataset.images[0]["width"], dataset.images[0]["height"]) == (WIDTH, HEIGHT)
        assert dataset[0][1]["boxes"].tolist() == [[30, 20, 40, 30]]
    path = write(image={"id": 7, "file_name": "none.png"} | sizes)
    with pytest.raises(AnnotationError, match="image 7: missing file"):
        CocoDetection(path, check=check)


MASK = np.zeros((HEIGHT, WIDTH), dtype=bool)
MASK[5:12, 3:20] = True
POLYGONS = [[3, 5, 9, 5, 9, 7], [5.5, 6, 20, 6, 20, 12]]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("box", [{}, {"bbox": None}, {"bbox": []}])
@pytest.mark.parametrize(
    ("segmentation", "expected"),
    [
        (POLYGONS, [3, 5, 20, 12]),
        (encode_mask(MASK), [3, 5, 20, 12]),
        ([[-4, 5, 9, 5, 9, 37]], [0, 5, 9, 30]),
    ],
)
def test_missing_boxes_are_computed_from_segmentations(write, masks, box, segmentation, expected):
    record = annotation(segmentation=segmentation)
    del record["bbox"]
    dataset = CocoDetection(write(record | box), masks=masks)
    target = dataset[0][1]
    assert target["boxes"].tolist() == [expected]
    if masks:
        assert target["masks"].any()
    for broken, message in (([[1, 2]], "broken segmentation: polygon 1"), ([], "box is not four")):
        with pytest.raises(AnnotationError, match=f"annotation 1: {message}"):
            CocoDetection(write(record | box | {"segmentation": broken}))


def test_polygons_are_clipped_to_the_image():
    inside = [[-20, -10, 60, -10, 60, 50, -20, 50]]
    assert np.array_equal(mask_of(inside), np.ones((HEIGHT, WIDTH)))


def mask_of(segmentation):
    from pycocotools import mask as coco

    return coco.decode(to_rle(segmentation, HEIGHT, WIDTH))


@pytest.mark.parametrize(
    ("value", "crowd"),
    [(0, 0), (1, 1), (False, 0), (True, 1), ("0", 0), ("1", 1), ("true", 1), ("False", 0)]
    + [(None, 0), (1.0, 1)],
)
def test_iscrowd_is_read_from_numbers_booleans_and_text(write, value, crowd):
    dataset = CocoDetection(write(annotation(iscrowd=value)))
    assert dataset.ground_truth()["annotations"][0]["iscrowd"] == crowd
    assert len(dataset[0][1]["boxes"]) == 1 - crowd


@pytest.mark.parametrize("value", ["no", "", 2, -1, 0.5, [], {}, [1], float("nan")])
def test_invalid_iscrowd_is_reported(write, value):
    path = write(annotation(), annotation(2, iscrowd=value))
    with pytest.raises(AnnotationError, match=r"data\.json: .*annotation 2: iscrowd is not 0 or 1"):
        CocoDetection(path)
    assert CocoDetection(path, on_error="skip").skipped == {"iscrowd is not 0 or 1": 1}


def rle(counts):
    return {"size": [HEIGHT, WIDTH], "counts": counts}


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ("o" * 300_000, "a number of more than 7 characters"),
        (
            "O" * 300_000,
            "run lengths are not non-negative integers|exceeds the image's 1200 pixels",
        ),
        ([10**4000, 10**4000], "exceeds the image's 1200 pixels"),
        ([9] * 300_000, "add up to 2700000"),
    ],
)
def test_excessive_run_lengths_name_the_broken_annotation(write, counts, message):
    with pytest.raises(SegmentationError, match=message):
        to_rle(rle(counts), HEIGHT, WIDTH)
    with pytest.raises(AnnotationError, match=rf"annotation 1: broken segmentation: .*({message})"):
        CocoDetection(write(annotation(segmentation=rle(counts))), masks=True)


def test_error_messages_stay_short_for_long_values(write):
    path = write(annotation(bbox="x" * 100_000), annotation(2, category_id="y" * 100_000))
    with pytest.raises(AnnotationError) as caught:
        CocoDetection(path)
    assert len(str(caught.value)) < 1000


def test_command_line_error_names_its_own_option(write, capsys):
    path = write(annotation(bbox=[1, 1, 0, 4]))
    with pytest.raises(AnnotationError, match=r"1 broken \(on_error='skip' skips them\): "):
        CocoDetection(path)
    assert cli.main(["eval", "--data", str(path), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "1 broken (--skip-broken skips them): annotation 1: zero area" in error
    assert "on_error" not in error


def test_eval_reports_corrected_and_skipped_annotations(write, capsys):
    path = write(annotation(bbox=[-5, 2, 10, 5]), annotation(2, bbox=[50, 2, 3, 5]))
    assert cli.main(["eval", "--data", str(path), "--device", "cpu"]) == 2  # the model finds trees
    error = capsys.readouterr().err
    assert "corrected 1 x box clipped to its image; skipped 1 x box outside the image" in error
