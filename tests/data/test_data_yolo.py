# SPDX-License-Identifier: MIT
"""Datasets as YOLO tools write them, with their quirks."""

import codecs
import os

import numpy as np
import pytest
from test_data_tools import HEIGHT, WIDTH, write_image

from detops.data import AnnotationError, VocDetection, YoloDetection, load_datasets, open_dataset
from detops.data import files as files_module
from detops.data import yolo as yolo_module


@pytest.fixture
def yolo(tmp_path):
    """Writes images, their labels and data.yaml."""

    def write(labels, yaml="train: images/train\nnames: [cat, dog]\n", bom=b""):
        for name, text in labels.items():
            write_image(tmp_path / "images/train" / f"{name}.png")
            if text is not None:
                file = tmp_path / "labels/train" / f"{name}.txt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bom + text.encode())
        (tmp_path / "data.yaml").write_bytes(bom + yaml.encode())
        return tmp_path

    return write


def test_yolo_boxes_and_polygons_are_read(yolo):
    root = yolo({"a": "1 0.5 0.5 0.5 0.2\n\n0 0 0 1 0 1 1 0 0.5\n", "b": "", "c": None})
    dataset = open_dataset(root)
    assert isinstance(dataset, YoloDetection) and dataset.names == ("cat", "dog")
    assert [image["id"] for image in dataset.images] == [f"images/train/{n}.png" for n in "abc"]
    _, target = dataset[0]
    assert target["labels"].tolist() == [2, 1]
    assert target["boxes"].tolist() == [[10, 12, 30, 18], [0, 0, 40, 30]]
    assert [len(dataset[i][1]["boxes"]) for i in (1, 2)] == [0, 0]


def test_yolo_polygons_become_masks(yolo):
    root = yolo({"a": "0 0.25 0.2 0.75 0.2 0.75 0.6 0.25 0.6"})
    masks = YoloDetection(root, masks=True)[0][1]["masks"]
    expected = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    expected[6:18, 10:30] = 1
    assert np.array_equal(masks[0], expected)
    yolo({"b": "0 0.5 0.5 0.1 0.1"})
    with pytest.raises(AnnotationError, match="b.txt, line 1: broken segmentation"):
        YoloDetection(root, masks=True)


@pytest.mark.parametrize(
    "line",
    [
        "0 0.5 0.5 0.5",
        "0 0.5 0.5 0.5 0.5 0.9",
        "0 a 0.5 0.5 0.5",
        "0 nan 0.5 0.5 0.5",
        "cat 0 0 1 1",
        "0 20 15 10 10",
        "0 inf 0 0 0",
        "7",
        "0 0 0 1 0 1 1 0 0.5 1",
    ],
)
def test_broken_yolo_label_is_reported_or_skipped(yolo, line):
    root = yolo({"a": f"0 0.5 0.5 0.5 0.5\n{line}\n"})
    with pytest.raises(AnnotationError, match=r"labels/train/a.txt, line 2: broken label"):
        YoloDetection(root)
    dataset = YoloDetection(root, on_error="skip")
    assert dataset.skipped == {"broken label": 1} and len(dataset[0][1]["boxes"]) == 1


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "1e9"])
def test_unknown_yolo_class_raises(yolo, label):
    with pytest.raises(AnnotationError, match=r"a.txt, line 1: unknown category"):
        YoloDetection(yolo({"a": f"{label} 0.5 0.5 0.5 0.5"}))


def test_broken_yolo_images_and_label_files_are_reported(yolo):
    root = yolo({"a": "0 0.5 0.5 1 1", "b": "0 0.5 0.5 1 1"})
    (root / "images/train/a.png").write_bytes(b"no image")
    (root / "labels/train/b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(AnnotationError, match=r"2 broken.*b.txt: unreadable label file.*a.png"):
        YoloDetection(root)
    assert len(YoloDetection(root, on_error="skip")) == 1


@pytest.mark.parametrize(
    "yaml",
    [
        "path: .\ntrain: images/train\nnames: {0: cat, 1: dog}\nnc: 2\n",
        "train: ../images/train\nnames: [cat, dog]\n",
        "path: ../elsewhere\ntrain: images/train\nval:\nnames: [cat, dog]\n",
        "train: [images/train]\nval: images/none\nnames: [cat, dog]\n",
        "train: list.txt\nnames: [cat, dog]\n",
        "nc: 2\nnames: [cat, dog]\n",
    ],
)
def test_yolo_images_are_found_in_every_layout(yolo, yaml):
    root = yolo({"a": "1 0.5 0.5 1 1"}, yaml, bom=codecs.BOM_UTF8)
    (root / "list.txt").write_text("./images/train/a.png\n")
    for spec in (root, root / "data.yaml", f"yolo:{root}?split=train"):
        (dataset,) = load_datasets([str(spec)])
        assert dataset[0][1]["labels"].tolist() == [2]


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("train: images/none\nnames: [cat]\n", "train: no such folder or list: .*images/none"),
        ("val: images/train\ntest: x\nnames: [cat]\n", "no split 'train'; there are val, test"),
        ("train: images/train\n", "names: expected a list, or names by number, got None"),
        ("train: images/train\nnames: []\n", r"names: expected a list.*got \{\}"),
        ("train: images/train\nnames: {a: cat}\n", "names: expected a list"),
        (
            "train: images/train\nnames: [cat]\nnc: 3\n",
            "nc: expected 1, the number of names, got 3",
        ),
        ("train: images/train\nnames: [cat]\nkpt_shape: [17, 3]\n", "kpt_shape: keypoints"),
        ("train: labels\nnames: [cat]\n", "train: no images in 'labels'"),
        ("- a\n", "expected keys and values, got list"),
        ("a: [", "cannot read"),
        ("a: " + "[" * 3000, "cannot read"),
        (f"train: {'x' * 3000}\nnames: [cat]\n", "train: no such folder or list"),
        ("train: x\nnames: {0: [cat]}\n", r"names: expected a name, .* got \['cat'\]"),
        ("train: x\nnames: [cat, ' ']\n", r"names: expected a name, .* got ' '"),
        ("train: images/train\nnames: [a, b, a]\n", "for each category, got 'a' for 0 and 2"),
        ("train: x\nnames: [&a cat, *a]\n", "cannot read .aliases are not supported"),
        ("train: x\nnames: [!!timestamp cat]\n", "cannot read .a value does not match its tag"),
    ],
)
def test_invalid_data_yaml_raises(yolo, yaml, message):
    with pytest.raises(AnnotationError, match=message):
        open_dataset(yolo({"a": "0 0.5 0.5 1 1"}, yaml))


def test_yolo_split_val_accepts_the_key_valid(yolo):
    root = yolo({"a": "0 0.5 0.5 1 1"}, "train: x\nvalid: images/train\nnames: [cat]\n")
    assert len(open_dataset(f"{root}?split=val")) == 1
    with pytest.raises(AnnotationError, match="split: expected train, val, test, got 'minival'"):
        open_dataset(f"{root}?split=minival")


def test_yolo_export_of_label_studio_opens(tmp_path):
    write_image(tmp_path / "images/1a2b3c4d-a.png")
    for name, text in (("classes.txt", "cat\ndog\n"), ("labels/1a2b3c4d-a.txt", "1 .5 .5 1 1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.json").write_text("{}")
    dataset = open_dataset(tmp_path)
    assert dataset.names == ("cat", "dog") and dataset[0][1]["labels"].tolist() == [2]


def test_yolo_export_of_cvat_opens(tmp_path):
    write_image(tmp_path / "obj_train_data/a b.png").with_suffix(".txt").write_text("0 .5 .5 1 1")
    (tmp_path / "obj.names").write_text("cat\ndog\n")
    (tmp_path / "obj.data").write_text("classes = 2\n")
    (tmp_path / "train.txt").write_text("data/obj_train_data/a b.png\n")
    dataset = open_dataset(tmp_path)
    assert dataset.names == ("cat", "dog") and dataset[0][1]["labels"].tolist() == [1]
    (tmp_path / "train.txt").write_text("data/obj_train_data/none.png\n")
    with pytest.raises(AnnotationError, match="missing file"):
        open_dataset(tmp_path)


def test_labels_next_to_images_are_found_below_an_images_folder(tmp_path):
    root = tmp_path / "images" / "mine"
    write_image(root / "photos/a.png").with_suffix(".txt").write_text("0 .5 .5 1 1")
    (root / "data.yaml").write_text("{train: photos, names: [cat]}")
    assert open_dataset(root)[0][1]["boxes"].tolist() == [[0, 0, WIDTH, HEIGHT]]


@pytest.mark.parametrize("name", ["b.gif", "b.JP2", "b.tga", "b.ppm", "b.Jpe", "b.pcx"])
def test_yolo_images_may_have_any_supported_format(yolo, name):
    root = yolo({"a": "0 0.5 0.5 1 1"})
    write_image(root / "images/train" / name)
    (root / "labels/train/b.txt").write_text("1 0.5 0.5 1 1")
    dataset = open_dataset(root)
    assert [target["labels"].tolist() for _, target in dataset] == [[1], [2]]


def test_yolo_labels_without_an_image_are_reported(yolo):
    root = yolo({"a": "0 0.5 0.5 1 1"})
    for name in ("labels/train/b.txt", "labels/train/deep/a.txt", "images/train/c.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("\n1 0.5 0.5 1 1\n")
    with pytest.raises(AnnotationError, match=r"3 broken .*train/b\.txt: label file without"):
        open_dataset(root)
    dataset = open_dataset(root, on_error="skip")
    assert len(dataset) == 1 and dataset.skipped == {"label file without an image": 3}
    # This holds only for a folder: a list may omit images on purpose.
    (root / "list.txt").write_text("images/train/a.png\n")
    (root / "data.yaml").write_text("{train: list.txt, names: [cat, dog]}")
    assert len(open_dataset(root)) == 1


@pytest.mark.parametrize("folder", ["images/train", "labels/train"])
def test_other_text_files_next_to_labels_are_ignored(yolo, folder):
    root = yolo({"a": "0 0.5 0.5 1 1"})
    texts = {"classes": "1\n2\n", "notes": "5 trees 1 2 3", "train": "images/a.png", "empty": ""}
    for name, text in texts.items():
        (root / folder / f"{name}.txt").write_text(text)
    (root / folder / "._a.txt").write_bytes(b"\xff\0")
    os.mkfifo(root / folder / "pipe.txt")
    assert len(open_dataset(root)) == 1


@pytest.mark.parametrize("name", ["Data.YAML", "data.Yml"])
def test_yaml_suffix_may_have_any_case(yolo, name):
    root = yolo({"a": "1 0.5 0.5 1 1"})
    (root / "data.yaml").rename(root / name)
    assert open_dataset(root / name).names == ("cat", "dog")


def test_errors_hide_the_content_of_files_that_are_no_list(yolo):
    """An untrusted data.yaml may name any file."""
    secret = "root:x:0:0:secret"
    root = yolo({"a": "0 0.5 0.5 1 1"}, "train: list.txt\nnames: [cat]\n")
    (root / "list.txt").write_text(f"{secret}\n/{secret}\n")
    with pytest.raises(AnnotationError, match="train: no images in 'list.txt'") as caught:
        open_dataset(root)
    (root / "list.txt").write_text(f"images/train/a.png\n\n{secret}\n")
    with pytest.raises(
        AnnotationError, match="list.txt, line 3: not the path of an image"
    ) as other:
        open_dataset(root)
    assert "secret" not in str(caught.value) + str(other.value)
    assert len(open_dataset(root, on_error="skip")) == 1


def test_lists_and_folders_have_size_limits(yolo, monkeypatch):
    root = yolo({"a": "0 0.5 0.5 1 1"}, "train: pipe\nnames: [cat]\n")
    os.mkfifo(root / "pipe")
    (root / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        (root / "data.yaml").write_text(f"train: {name}\nnames: [cat]\n")
        with pytest.raises(AnnotationError, match=f"{name}: cannot read .*not a regular file"):
            open_dataset(root)
    (root / "data.yaml").write_text("train: images\nnames: [cat]\n")
    monkeypatch.setattr(files_module, "MAX_FILE_BYTES", 10)
    with pytest.raises(AnnotationError, match="a.txt: unreadable label file: .*more than 10 bytes"):
        open_dataset(root)
    monkeypatch.setattr(yolo_module, "MAX_ENTRIES", 1)
    with pytest.raises(AnnotationError, match="images: more than 1 files and folders in it"):
        open_dataset(root)


def test_pipes_among_the_files_are_reported(yolo, tmp_path):
    root = yolo({"a": "0 0.5 0.5 1 1"})
    os.mkfifo(root / "images/train/b.png")
    with pytest.raises(AnnotationError, match="1 broken .*b.png: not a regular file"):
        open_dataset(root)
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "JPEGImages").mkdir()
    os.mkfifo(tmp_path / "Annotations/a.xml")
    with pytest.raises(AnnotationError, match="a.xml: broken annotation file: not a regular file"):
        VocDetection(tmp_path)
