# SPDX-License-Identifier: MIT
"""Pascal VOC and LVIS datasets, and opening any dataset by its path."""

import json
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from detops.data import (
    AnnotationError,
    CocoDetection,
    LvisDetection,
    Shapes,
    VocDetection,
    load_datasets,
    open_dataset,
)

OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
</object>"""


def voc_xml(*objects, size=(40, 30)):
    filled = (
        OBJECT.format(**{"name": "cat", "difficult": 0, "box": [2, 3, 11, 9]} | o) for o in objects
    )
    width, height = size
    return (
        f"<annotation><size><width>{width}</width><height>{height}</height></size>"
        f"{''.join(filled)}</annotation>"
    )


@pytest.fixture
def voc(tmp_path):
    """Writes a VOC folder with two images; the second is in both splits."""
    root = tmp_path / "VOC2007"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main", "SegmentationObject"):
        (root / folder).mkdir(parents=True)
    for name in ("000001", "000002"):
        Image.new("RGB", (40, 30)).save(root / "JPEGImages" / f"{name}.jpg")
    (root / "Annotations/000001.xml").write_text(
        voc_xml({}, {"name": "dog", "difficult": 1, "box": [1, 1, 40, 30]})
    )
    (root / "Annotations/000002.xml").write_text(voc_xml({"name": "dog"}))
    (root / "ImageSets/Main/trainval.txt").write_text("000001\n000002\n")
    (root / "ImageSets/Main/val.txt").write_text("000002\n")
    (root / "ImageSets/Main/cat_val.txt").write_text("000002 -1\n")
    return root


def test_voc_opens_with_names_boxes_and_splits(voc):
    dataset = VocDetection(voc)
    assert len(dataset) == 2 and len(dataset.names) == 20 and dataset.names[7] == "cat"
    image, target = dataset[0]
    assert image.shape == (3, 30, 40) and target["image_id"] == "000001"
    # VOC coordinates start at 1 and include the last pixel.
    assert target["boxes"].tolist() == [[1, 2, 11, 9]] and target["labels"].tolist() == [8]
    assert [image["id"] for image in VocDetection(voc, split="val").images] == ["000002"]


def test_voc_difficult_objects_are_ignored_unless_used(voc):
    ignored = VocDetection(voc).ground_truth()["annotations"]
    assert [(a["difficult"], a["iscrowd"]) for a in ignored] == [(0, 0), (1, 1), (0, 0)]
    used = VocDetection(voc, difficult="use")
    assert used[0][1]["boxes"].tolist() == [[1, 2, 11, 9], [0, 0, 40, 30]]
    assert [a["iscrowd"] for a in used.ground_truth()["annotations"]] == [0, 0, 0]
    with pytest.raises(ValueError, match="difficult: expected 'ignore' or 'use'"):
        VocDetection(voc, difficult="maybe")


def test_voc_categories_come_from_the_files_or_an_option(voc):
    path = voc / "Annotations/000002.xml"
    path.write_text(voc_xml({"name": "zebra"}))
    assert VocDetection(voc).names == ("cat", "dog", "zebra")
    named = VocDetection(voc, names=["zebra", "cat"], on_error="skip")
    assert named.names == ("zebra", "cat") and named[1][1]["labels"].tolist() == [1]
    assert named.skipped == {"unknown category": 1}
    assert open_dataset(f"{voc}?names=dog,zebra,cat").names == ("dog", "zebra", "cat")


def test_voc_opens_without_lists_and_with_png_images(voc):
    for file in (voc / "ImageSets/Main").iterdir():
        file.unlink()
    (voc / "JPEGImages/000001.jpg").unlink()
    Image.new("RGB", (40, 30)).save(voc / "JPEGImages/000001.png")
    dataset = VocDetection(voc)
    assert dataset.image_path(0).name == "000001.png" and len(dataset) == 2


@pytest.mark.parametrize(
    ("files", "listed_name", "expected"),
    [
        (["v.JPG"], "v.JPG", "v.JPG"),
        (["v.JPG"], "", "v.JPG"),
        (["v.Gif", "v.txt"], "none.jpg", "v.Gif"),
        (["v.png", "v.JPG"], "v.png", "v.png"),
        (["v.png", "v.JPG"], "none.png", "v.JPG"),
        (["old.PNG"], "old.PNG", "old.PNG"),
        # After renaming, <filename> may be the former name of another image.
        (["v.png", "w.png"], "w.png", "v.png"),
        (["w.png"], "../JPEGImages/w.png", None),
        ([], "v.jpg", None),
    ],
)
def test_voc_image_file_is_chosen_by_name_and_suffix(voc, files, listed_name, expected):
    for file in (*voc.glob("ImageSets/Main/*"), *voc.glob("JPEGImages/*"), *voc.glob("A*/*")):
        file.unlink()
    for file in files:
        Image.new("RGB", (40, 30)).save(voc / "JPEGImages" / file, "PNG")
    text = voc_xml({}).replace("<size>", f"<filename>{listed_name}</filename><size>")
    (voc / "Annotations/v.xml").write_text(text)
    if expected is None:
        with pytest.raises(AnnotationError, match=r"image v: missing file: .*JPEGImages/v\.jpg"):
            VocDetection(voc)
    else:
        assert VocDetection(voc).image_path(0) == voc / "JPEGImages" / expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_voc_image_is_found_in_its_exact_unicode_form(voc, form):
    for other in ("NFC", "NFD"):
        Image.new("RGB", (40, 30)).save(voc / "JPEGImages" / f"{normalize(other, 'é')}.png")
    (voc / "JPEGImages/000001.jpg").unlink()
    listed_name = f"{normalize(form, 'é')}.png"
    path = voc / "Annotations/000001.xml"
    path.write_text(path.read_text().replace("<size>", f"<filename>{listed_name}</filename><size>"))
    assert VocDetection(voc).image_path(0).name == listed_name


def test_voc_images_may_lie_in_subfolders(voc):
    for folder, suffix in (("Annotations", "xml"), ("JPEGImages", "jpg")):
        (voc / folder / "deep").mkdir()
        (voc / folder / f"000001.{suffix}").rename(voc / folder / f"deep/a.{suffix}")
    (voc / "ImageSets/Main/trainval.txt").write_text("000002\ndeep/a\n")
    dataset = VocDetection(voc)
    assert dataset.image_path(1) == voc / "JPEGImages/deep/a.jpg" and len(dataset) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>", "000002.xml: broken annotation file: not XML"),
        ("\0", "000002.xml: broken annotation file: not XML"),
        ("<a/>", "000002.xml: broken annotation file: expected <annotation>, got <a>"),
        (voc_xml(size=(-1, 30)), "broken annotation file: size is -1 x 30"),
        (voc_xml(size=("x", 30)), "broken annotation file: size/width is 'x'"),
        (voc_xml(size=(41, 30)), "image 000002: wrong image size: expected 41 x 30"),
        (voc_xml({"difficult": "maybe"}), "000002.xml: .*object 1: difficult is 'maybe', not 0 or"),
        (voc_xml({}, {"box": [9, 9, 8, 10]}), "000002.xml, object 2: zero area"),
        (voc_xml({"box": ["nan", 9, 8, 10]}), "object 1: box is not four .*bndbox/xmin is 'nan'"),
        (voc_xml({"box": ["", 9, 8, 10]}), "object 1: box is not four .*bndbox/xmin is ''"),
        (voc_xml({"name": ""}), "object 1: unknown category: ''"),
        (None, "000002.xml: broken annotation file: No such file"),
    ],
)
def test_broken_voc_file_is_reported_or_skipped(voc, text, message):
    path = voc / "Annotations/000002.xml"
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(AnnotationError, match=f"VOC2007: 1 broken.*{message}"):
        VocDetection(voc)
    assert VocDetection(voc, on_error="skip").skipped.total() == 1


def test_voc_folders_may_have_other_names(voc):
    (voc / "Annotations").rename(voc / "annotations")
    (voc / "JPEGImages").rename(voc / "images")
    dataset = open_dataset(voc)
    assert type(dataset) is VocDetection
    assert [len(target["boxes"]) for _, target in dataset] == [1, 1]
    (voc / "annotations/000002.xml").write_text("<a>")
    with pytest.raises(AnnotationError, match="annotations/000002.xml"):
        open_dataset(voc)
    (voc / "annotations/all.json").write_text("{}")
    with pytest.raises(AnnotationError, match="not COCO format"):
        open_dataset(voc)


def test_missing_voc_folder_and_split_raise(voc, tmp_path):
    with pytest.raises(AnnotationError, match="no folder 'Annotations'"):
        VocDetection(tmp_path)
    with pytest.raises(AnnotationError, match=r"split 'test'; there are trainval, val"):
        VocDetection(voc, split="test")


def test_voc_masks_are_read_from_segmentation_images(voc):
    (voc / "ImageSets/Segmentation").mkdir()
    (voc / "ImageSets/Segmentation/train.txt").write_text("000001\n")
    values = np.zeros((30, 40), dtype=np.uint8)
    values[2:9, 1:11], values[20:25, 5:9], values[9, 1:11] = 1, 2, 255
    coloured = Image.fromarray(values, "P")
    coloured.putpalette(list(range(256)) * 3)
    coloured.save(voc / "SegmentationObject/000001.png")
    dataset = VocDetection(voc, masks=True, difficult="use")
    target = dataset[0][1]
    assert len(dataset) == 1 and target["masks"].shape == (2, 30, 40)
    for mask, value in zip(target["masks"].numpy(), (1, 2), strict=True):
        assert np.array_equal(mask > 0, values == value)
    (voc / "ImageSets/Segmentation/train.txt").write_text("000001\n000002\n")
    with pytest.raises(AnnotationError, match=r"2 broken.*SegmentationObject/000002.png: unread"):
        VocDetection(voc, masks=True)
    Image.fromarray(values[:9], "L").save(voc / "SegmentationObject/000002.png")
    with pytest.raises(AnnotationError, match=r"000002.png: wrong mask size: \(9, 40\)"):
        VocDetection(voc, masks=True)


def lvis(**changes):
    url = "http://images.example.org/train2017/{}.png"
    images = [{"id": id, "coco_url": url.format(id), "width": 40, "height": 30} for id in (1, 2)]
    images[0] |= {"neg_category_ids": [2], "not_exhaustive_category_ids": [3]}
    return {
        "images": images,
        "categories": [
            {"id": id, "name": name, "frequency": group}
            for id, name, group in ((1, "ant", "f"), (2, "bee", "r"), (3, "cow", "f"))
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 3,
                "bbox": [1, 2, 10, 5],
                "segmentation": [[1, 2, 11, 2, 11, 7, 1, 7]],
            }
        ],
    } | changes


@pytest.fixture
def images(tmp_path):
    (tmp_path / "train2017").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "train2017" / "1.png")
    Image.new("RGB", (40, 30)).save(tmp_path / "2.png")
    return tmp_path


def write(folder, data, name="data.json"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def test_lvis_opens_with_frequency_groups_and_masks(images):
    dataset = LvisDetection(write(images, lvis()), masks=True)
    assert dataset.image_path(0) == images / "train2017" / "1.png"
    assert dataset.image_path(1) == images / "2.png"
    assert dataset.frequency_groups == {"r": (2,), "c": (), "f": (1, 3)}
    assert dataset.images[0]["neg_category_ids"] == [2]
    assert dataset.images[1]["not_exhaustive_category_ids"] == []
    assert dataset[0][1]["labels"].tolist() == [3] and int(dataset[0][1]["masks"].sum()) == 50


def test_broken_lvis_file_raises(images):
    data = lvis()
    data["images"][0]["neg_category_ids"] = [9]
    with pytest.raises(
        AnnotationError, match="image 1: neg_category_ids names an unknown category"
    ):
        LvisDetection(write(images, data))
    data = lvis()
    data["images"][0]["coco_url"] = None
    with pytest.raises(AnnotationError, match="image 1: file name is not text"):
        LvisDetection(write(images, data))
    del data["images"][0]["coco_url"]
    with pytest.raises(AnnotationError, match="lacks file_name"):
        LvisDetection(write(images, data))


def test_format_is_detected_from_the_files(voc, images):
    path = write(images, lvis())
    assert type(open_dataset(path)) is LvisDetection
    assert type(open_dataset(f"coco:{path}")) is CocoDetection
    categories = [{"id": id, "name": f"x{id}"} for id in (1, 2, 3)]
    assert type(open_dataset(write(images, lvis(categories=categories)))) is CocoDetection
    assert type(open_dataset(voc)) is VocDetection
    assert len(open_dataset(f"voc:{voc}?split=val&difficult=use")) == 1
    assert type(open_dataset("shapes:test?length=3&size=32x48")) is Shapes
    assert open_dataset("tree_crowns/val.json").names == ("tree",)


def test_coco_folder_opens_the_chosen_split(images):
    with pytest.raises(AnnotationError, match="no folder 'Annotations', no data.yaml, no "):
        open_dataset(images)
    for split in ("train2017", "val2017"):
        (images / split).mkdir(exist_ok=True)
        Image.new("RGB", (40, 30)).save(images / split / "x.png")
        record = {"id": 1, "file_name": "x.png", "width": 40, "height": 30}
        data = lvis(images=[record])
        write(images, data, f"annotations/instances_{split}.json")
    with pytest.raises(AnnotationError, match=r"choose one of instances_train2017\.json, "):
        open_dataset(images)
    dataset = open_dataset(f"{images}?split=val2017")
    assert dataset.image_path(0) == images / "val2017" / "x.png"
    with_image_dir = open_dataset(f"{images}?split=val2017", image_dir=images / "train2017")
    assert with_image_dir.image_path(0) == images / "train2017" / "x.png"


def test_path_may_contain_a_question_mark(images):
    assert len(open_dataset(write(images, lvis(), "what?.json"))) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("none.json", "none.json: cannot read"),
        ("voc:none", "none: cannot read"),
        (
            "tree_crowns/val.json?colour=red",
            "coco has no option 'colour'; it has image_dir",
        ),
        ("shapes:train?split=x", "shapes has no option 'split'"),
        ("shapes:dev", "split: expected 'train' or 'test', got 'dev'"),
        ("shapes:train?length", "expected options as in"),
        ("shapes:train?length=-1", "length: expected an integer from 0, got -1"),
        ("shapes:train?objects=many", "objects: expected an integer from 1, got 'many'"),
        ("shapes:train?size=9", "size: expected a side"),
        ("shapes:train?size=9xx", "size: expected a side"),
        ("shapes:train?keypoints=True", "shapes have no keypoints"),
        ("tree_crowns/val.json?on_error=no", "on_error: expected 'raise' or 'skip'"),
    ],
)
def test_invalid_dataset_spec_raises(spec, message):
    with pytest.raises(ValueError, match=message):
        open_dataset(spec)


def test_load_datasets_passes_options_on(voc, images):
    broken = lvis()
    broken["annotations"][0]["bbox"] = [0, 0, 0, 0]
    (dataset,) = load_datasets(str(write(images, broken)), on_error="skip", masks=True)
    assert dataset.skipped.total() == 1 and dataset.masks
    with pytest.raises(AnnotationError, match="no dataset given"):
        load_datasets([])
    with pytest.raises(AnnotationError, match="differ from"):
        load_datasets([str(voc), str(images / "data.json")], on_error="skip")
