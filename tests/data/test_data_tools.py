# SPDX-License-Identifier: MIT
"""Datasets as CVAT and Label Studio write them, with their quirks."""

import codecs
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detops.data import (
    AnnotationError,
    CvatDetection,
    LabelStudioDetection,
    open_dataset,
)
from detops.data.files import resolve_file
from detops.data.masks import rotated_corners

WIDTH, HEIGHT = 40, 30


def write_image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT), (9, 99, 199)).save(path)
    return path


# ---- file names


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.png", "a.png"),
        ("train/a.png", r"train\a.png"),
        ("a b.png", "a%20b.png"),
        ("a%20b.png", "a%20b.png"),
        ("a.png", "/data/upload/1/a.png"),
        ("a.png", "/data/upload/1/1a2b3c4d-a.png"),
        ("1a2b3c4d-a.png", "/data/upload/1/1a2b3c4d-a.png"),
        ("a.png", "images/1a2b3c4d-a.png"),
        ("a b.png", "../../media/upload/2/1a2b3c4d-a%20b.png"),
        ("sub/a.png", "/data/local-files/?d=sub/a.png"),
        ("a.png", "https://host/x/a.png?token=7"),
        ("a.png", "s3://bucket/x/a.png"),
    ],
)
def test_mangled_file_names_find_their_files(tmp_path, file, name):
    write_image(tmp_path / file)
    assert resolve_file(tmp_path, name) == file


@pytest.mark.parametrize(
    "name",
    ["b/a.png", "1a2b3c4-a.png", "", "\0", "x" * 5000, "é/\0/é", "é" * 5000, "é" * 300, "a.png/"],
)
def test_names_without_a_file_stay_unchanged(tmp_path, name):
    write_image(tmp_path / "a.png")
    assert resolve_file(tmp_path, name) == name


@given(st.text(max_size=30))
def test_any_name_in_a_missing_folder_stays_unchanged(tmp_path_factory, name):
    folder = tmp_path_factory.getbasetemp() / "none"
    assert resolve_file(folder, name) == name


# ---- CVAT


@pytest.fixture
def cvat(tmp_path):
    """Writes annotations.xml with one image and the given shapes."""

    def write(shapes, folder="images/default", extra="", image='subset="default"'):
        write_image(tmp_path / folder / "a.png")
        labels = "".join(f"<label><name>{name}</name></label>" for name in ("dog", "cat"))
        (tmp_path / "annotations.xml").write_text(
            f"<annotations><version>1.1</version><meta><task><labels>{labels}</labels></task></meta>"
            f'<image id="3" name="a.png" {image} width="{WIDTH}" height="{HEIGHT}">{shapes}</image>'
            f"{extra}</annotations>"
        )
        return tmp_path

    return write


BOX = '<box label="cat" xtl="1" ytl="2" xbr="11" ybr="7" occluded="0"/>'


@pytest.mark.parametrize("folder", ["", "images", "images/default"])
def test_cvat_boxes_and_polygons_are_read(cvat, folder):
    polygon = (
        '<polygon label="dog" points="3.5,5;9,5;9,12"><attribute name="x">1</attribute></polygon>'
    )
    root = cvat(BOX + polygon + '<tag label="cat"/>', folder)
    for spec in (root, root / "annotations.xml"):
        dataset = open_dataset(spec)
        assert isinstance(dataset, CvatDetection) and dataset.names == ("dog", "cat")
        _, target = dataset[0]
        assert target["labels"].tolist() == [2, 1] and target["image_id"] == "3"
        assert target["boxes"].tolist() == [[1, 2, 11, 7], [3.5, 5, 9, 12]]


def test_rotated_cvat_boxes_become_enclosing_boxes(cvat):
    rotated = BOX.replace("<box", '<box rotation="90"')
    assert CvatDetection(cvat(rotated))[0][1]["boxes"].tolist() == [[3.5, 0, 8.5, 9.5]]


def test_cvat_masks_are_decoded(cvat):
    mask = '<mask label="cat" rle="1,2,1,2" left="5" top="6" width="3" height="2"/>'
    dataset = CvatDetection(cvat(mask), masks=True)
    expected = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    expected[6, 6:8] = expected[7, 6:8] = 1
    assert np.array_equal(dataset[0][1]["masks"][0], expected)
    assert dataset[0][1]["boxes"].tolist() == [[6, 6, 8, 8]]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (BOX.replace('"1"', '"x"'), "image 3, box 1: broken box"),
        (BOX.replace('xtl="1"', ""), "image 3, box 1: broken box"),
        (BOX.replace('"11"', '"1"'), "image 3, box 1: zero area"),
        (BOX.replace("cat", "cow"), "image 3, box 1: unknown category: 'cow'"),
        ('<polyline label="cat" points="1,1;2,2"/>', "polyline 1: unsupported shape"),
        ('<polygon label="cat" points="1,1;2"/>', "polygon 1 has 3 numbers"),
        ('<polygon label="cat"/>', "broken polygon"),
        ('<mask label="cat" rle="7" left="0" top="0" width="3" height="2"/>', "add up to 6"),
        (f'<mask label="cat" rle="{"9" * 5000}"/>', "broken mask"),
        ('<mask label="cat" rle="6" left="38" top="0" width="3" height="2"/>', "not within"),
        ('<mask label="cat" rle="-1,7" left="0" top="0" width="3" height="2"/>', "add up to 6"),
    ],
)
def test_broken_cvat_shape_is_reported_or_skipped(cvat, shape, message):
    root = cvat(shape + BOX)
    with pytest.raises(AnnotationError, match=message):
        CvatDetection(root)
    dataset = CvatDetection(root, on_error="skip")
    assert dataset.skipped.total() == 1 and len(dataset[0][1]["boxes"]) == 1


def test_cvat_label_without_a_name_raises(cvat):
    path = cvat(BOX) / "annotations.xml"
    path.write_text(path.read_text().replace("<name>dog</name>", "<name/>"))
    with pytest.raises(AnnotationError, match="category 1: expected a name, .* got ''"):
        open_dataset(path)


@pytest.mark.parametrize(
    ("width", "height"), [("9" * 5000, HEIGHT), (10**9, 10**9), ("x", HEIGHT), (WIDTH, "-1")]
)
def test_cvat_mask_requires_a_valid_image_size(tmp_path, width, height):
    write_image(tmp_path / "a.png")
    mask = '<mask label="cat" rle="1,2,1,2" left="5" top="6" width="3" height="2"/>'
    (tmp_path / "annotations.xml").write_text(
        "<annotations><meta><job><labels><label><name>cat</name></label></labels></job></meta>"
        f'<image name="a.png" width="{width}" height="{height}">{mask}</image></annotations>'
    )
    with pytest.raises(AnnotationError, match="image a.png, mask 1: broken mask: mask of an image"):
        CvatDetection(tmp_path)


def test_invalid_cvat_file_raises(cvat, tmp_path):
    track = '<track id="0" label="cat"><box frame="0" xtl="1" ytl="1" xbr="2" ybr="2"/></track>'
    with pytest.raises(AnnotationError, match="track 0: track of a video"):
        CvatDetection(cvat(BOX, extra=track))
    for text, message in (("<a/>", "not in CVAT format"), ("<a>", "not XML"), ("", "not XML")):
        (tmp_path / "annotations.xml").write_text(text)
        with pytest.raises(AnnotationError, match=message):
            open_dataset(tmp_path)
    with pytest.raises(AnnotationError, match="cannot read"):
        CvatDetection(tmp_path / "none.xml")


# ---- Label Studio


def region(kind="rectanglelabels", **value):
    default_value = {"x": 25, "y": 20, "width": 50, "height": 40, "rotation": 0, kind: ["cat"]}
    sides = {"original_width": WIDTH, "original_height": HEIGHT}
    return {"type": kind, "value": default_value | value} | sides


def task(*regions, number=5, name="/data/upload/1/1a2b3c4d-a%20b.png", **annotation):
    return {
        "id": number,
        "data": {"image": name},
        "annotations": [{"result": [*regions]} | annotation],
    }


@pytest.fixture
def label_studio(tmp_path):
    def write(*tasks):
        write_image(tmp_path / "a b.png")
        path = tmp_path / "export.json"
        path.write_bytes(codecs.BOM_UTF8 + json.dumps(tasks).encode())
        return path

    return write


def test_label_studio_rectangles_and_polygons_are_read(label_studio):
    points = [[0, 0], [50, 0], [50, 100]]
    path = label_studio(
        task(region(), region("polygonlabels", points=points, polygonlabels=["ant"]))
    )
    for spec in (path, f"label-studio:{path}"):
        dataset = open_dataset(spec)
        assert isinstance(dataset, LabelStudioDetection) and dataset.names == ("ant", "cat")
        assert dataset.images[0]["file_name"] == "a b.png"
        _, target = dataset[0]
        assert target["labels"].tolist() == [2, 1] and target["image_id"] == 5
        assert target["boxes"].tolist() == [[10, 6, 30, 18], [0, 0, 20, 30]]
    assert open_dataset(f"{path}?names=cat,ant").names == ("cat", "ant")


def test_rotated_label_studio_rectangles_are_enclosed(label_studio):
    dataset = open_dataset(label_studio(task(region(rotation=90))))
    # Label Studio rotates clockwise around the upper left corner.
    assert dataset[0][1]["boxes"].tolist() == [[0, 6, 10, 26]]


def test_label_studio_task_uses_exactly_one_annotation(label_studio):
    two = task(region())
    two["annotations"] = [
        {"result": [region()], "was_cancelled": True},
        {"result": []},
    ]
    assert len(open_dataset(f"{label_studio(two)}?names=cat")[0][1]["boxes"]) == 0
    two["annotations"][0] = {"result": [region()], "ground_truth": True}
    assert len(open_dataset(label_studio(two))[0][1]["boxes"]) == 1
    two["annotations"][0]["ground_truth"] = False
    with pytest.raises(AnnotationError, match="task 5: broken task: expected one annotation"):
        open_dataset(label_studio(two))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (region("brushlabels"), "region 2: unsupported region: 'brushlabels'"),
        (region(rectanglelabels=[]), r"region 2: expected one label: \[\]"),
        (region(rectanglelabels=["a", "b"]), "expected one label"),
        (region(rectanglelabels=[" "]), "expected one label"),
        (region(x=None), "broken region"),
        (region(x=math.nan), "broken region"),
        (region(width=0), "zero area"),
        (region() | {"original_width": "40"}, "broken region"),
        (region("polygonlabels", points=[[1, 2], [3]]), "broken region"),
        (region("polygonlabels", points=[[1, 2]]), "polygon 1 has 2 numbers"),
        (7, "unsupported region: None"),
    ],
)
def test_broken_label_studio_region_is_reported_or_skipped(label_studio, broken, message):
    path = label_studio(task(region(), broken))
    with pytest.raises(AnnotationError, match=message):
        open_dataset(path)
    dataset = open_dataset(path, on_error="skip")
    assert dataset.skipped.total() == 1 and len(dataset[0][1]["boxes"]) == 1


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([7], "expected a list of tasks"),
        ([{"image": "a.png", "label": []}], 'export as "JSON", not as "JSON-MIN"'),
        ([task(region()) | {"data": {"picture": "a.png"}}], "task 5: broken task: no 'image'"),
        ([task(region()) | {"id": []}], r"id is \[\]"),
        ([task(region()) | {"annotations": []}], "expected one annotation"),
        ([task(region(), name="none.png")], "missing file"),
    ],
)
def test_invalid_label_studio_file_raises(label_studio, tasks, message):
    with pytest.raises(AnnotationError, match=message):
        open_dataset(label_studio(*tasks))


def test_coco_export_of_label_studio_finds_its_images(tmp_path):
    write_image(tmp_path / "images/a b.png")
    image = {"id": 0, "file_name": "images\\1a2b3c4d-a%20b.png", "width": WIDTH, "height": HEIGHT}
    data = {
        "images": [image],
        "categories": [{"id": 0, "name": "cat"}],
        "annotations": [{"id": 0, "image_id": 0, "category_id": 0, "bbox": [1, 2, 3, 4]}],
    }
    (tmp_path / "result.json").write_text(json.dumps(data))
    assert open_dataset(tmp_path).image_path(0) == tmp_path / "images/a b.png"


def test_voc_export_of_label_studio_opens(tmp_path):
    write_image(tmp_path / "images/a.png")
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations/a.xml").write_text(
        f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size><object>"
        "<name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        "</object></annotation>"
    )
    assert open_dataset(tmp_path)[0][1]["boxes"].tolist() == [[0, 0, 9, 9]]


@given(st.floats(-1000, 1000), st.floats(0.1, 50), st.floats(0.1, 50))
def test_rotation_keeps_side_lengths_and_first_corner(angle, width, height):
    p = np.array(rotated_corners([3, 4, width, height], angle, (3, 4))).reshape(4, 2)
    assert p[0] == pytest.approx([3, 4])
    assert math.dist(p[0], p[1]) == pytest.approx(width, abs=1e-5)
    assert math.dist(p[1], p[2]) == pytest.approx(height, abs=1e-5)
