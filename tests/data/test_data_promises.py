# SPDX-License-Identifier: MIT
"""Promises of docs/training.md, checked for every format from one table."""

import json
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detops.data import AnnotationError, open_dataset, read_class_map
from detops.data.catalog import FORMATS

WIDTH, HEIGHT = 40, 30
X, Y, W, H = 16, 12, 8, 6
POLYGON = [X, Y, X + W, Y, X + W, Y + H, X, Y + H]
MISSING = object()


def composed(text):
    return unicodedata.normalize("NFC", text)


def decomposed(text):
    return unicodedata.normalize("NFD", text)


@dataclass(frozen=True)
class Scene:
    """One image with at most one object, to be written in any format."""

    listed_name: str = "a.png"  # the name of the image in the annotations
    file: str = "a.png"  # its name on disk
    sides: tuple = (WIDTH, HEIGHT)
    category: str = "oak"
    has_object: bool = True
    has_mask: bool = False
    is_crowd: bool = False
    width: float = W
    number: type = int  # type of the ids

    def size(self, width="width", height="height"):
        pairs = zip((width, height), self.sides, strict=True)
        return {key: side for key, side in pairs if side is not MISSING}

    def attributes(self):
        return " ".join(f'{key}="{value}"' for key, value in self.size().items())


def write_file(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def write_image(path, values=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8) if values is None else values).save(path)


def write_coco(root, scene, naming="file_name", **category):
    write_image(root / scene.file)
    id = scene.number
    shape = {"segmentation": [POLYGON]} if scene.has_mask else {}
    found = {"id": id(9), "image_id": id(7), "category_id": id(3), "bbox": [X, Y, scene.width, H]}
    found |= {"iscrowd": int(scene.is_crowd)} | shape
    data = {
        "images": [{"id": id(7), naming: scene.listed_name} | scene.size()],
        "categories": [{"id": id(3), "name": scene.category} | category],
        "annotations": [found] * scene.has_object,
    }
    return write_file(root / "data.json", json.dumps(data))


def write_lvis(root, scene):
    remote_scene = replace(scene, listed_name=f"http://host/{scene.listed_name}")
    path = write_coco(root, remote_scene, "coco_url", frequency="f")
    data = json.loads(path.read_text())
    data["images"][0]["neg_category_ids"] = [scene.number(3)]
    return write_file(path, json.dumps(data))


def write_voc(root, scene):
    """Writes the annotations under the name on disk, because only that names the image."""
    stem, listed_name = Path(scene.file).with_suffix(""), Path(scene.listed_name).with_suffix("")
    write_image(root / "JPEGImages" / scene.file)
    corners = {"xmin": X + 1, "ymin": Y + 1, "xmax": X + scene.width, "ymax": Y + H}
    box = "".join(f"<{name}>{value}</{name}>" for name, value in corners.items())
    sides = "".join(f"<{name}>{value}</{name}>" for name, value in scene.size().items())
    found = (
        f"<object><name>{scene.category}</name><difficult>{int(scene.is_crowd)}</difficult>"
        f"<bndbox>{box}</bndbox></object>"
    )
    text = f"<annotation><size>{sides}</size>{found * scene.has_object}</annotation>"
    write_file(root / f"Annotations/{stem}.xml", text)
    write_file(root / "ImageSets/Main/trainval.txt", f"{listed_name}\n")
    write_file(root / "ImageSets/Segmentation/trainval.txt", f"{listed_name}\n")
    if scene.has_mask:
        values = np.zeros((HEIGHT, WIDTH), np.uint8)
        values[Y : Y + H, X : X + W] = 1
        write_image(root / f"SegmentationObject/{stem}.png", values)
    return root


def label(scene):
    fractions = [value / side for value, side in zip(POLYGON, (WIDTH, HEIGHT) * 4, strict=True)]
    centre = (X + W / 2) / WIDTH, (Y + H / 2) / HEIGHT
    values = fractions if scene.has_mask else [*centre, scene.width / WIDTH, H / HEIGHT]
    return " ".join(map(str, [scene.number(0), *values])) if scene.has_object else ""


def write_yolo(root, scene):
    """Writes the image folder into data.yaml, and names the label file after `listed_name`."""
    write_image(root / "images/train" / scene.file)
    listed_name = Path("train", scene.listed_name)
    write_file(root / "labels" / listed_name.with_suffix(".txt"), label(scene))
    folder = listed_name.parent.as_posix()
    return write_file(
        root / "data.yaml", f"train: images/{folder}\nnames:\n  0: {scene.category}\n"
    )


def write_yolo_list(root, scene):
    write_image(root / scene.file)
    write_file((root / scene.file).with_name(Path(scene.listed_name).stem + ".txt"), label(scene))
    write_file(root / "train.txt", f"data/{scene.listed_name}\n")
    return write_file(root / "obj.names", f"{scene.category}\n").parent


def write_cvat(root, scene):
    write_image(root / "images" / scene.file)
    if scene.has_mask:
        attributes = f'left="{X}" top="{Y}" width="{W}" height="{H}" rle="0,{W * H}"'
        found = f'<mask label="{scene.category}" {attributes}/>'
    else:
        corners = f'xtl="{X}" ytl="{Y}" xbr="{X + scene.width}" ybr="{Y + H}"'
        found = f'<box label="{scene.category}" {corners}/>'
    labels = f"<labels><label><name>{scene.category}</name></label></labels>"
    folder, _, name = scene.listed_name.rpartition("/")
    image = f'<image id="7" name="{name}" subset="{folder}" {scene.attributes()}>'
    text = f"<meta><task>{labels}</task></meta>{image}{found * scene.has_object}</image>"
    return write_file(root / "annotations.xml", f"<annotations>{text}</annotations>")


def write_label_studio(root, scene):
    write_image(root / scene.file)
    kind = "polygonlabels" if scene.has_mask else "rectanglelabels"
    x, y = 100 / WIDTH, 100 / HEIGHT
    value = {"x": X * x, "y": Y * y, "width": scene.width * x, "height": H * y}
    if scene.has_mask:
        value = {"points": [[POLYGON[i] * x, POLYGON[i + 1] * y] for i in range(0, 8, 2)]}
    region = {"type": kind, "value": value | {kind: [scene.category]}}
    region |= scene.size("original_width", "original_height")
    task = {"id": scene.number(7), "data": {"image": f"/data/local-files/?d={scene.listed_name}"}}
    task["annotations"] = [{"result": [region] * scene.has_object}]
    path = write_file(root / "export.json", json.dumps([task]))
    return path if scene.has_object else f"{path}?names={scene.category}"


# Writers of the layouts of each format; the first word of a key is the format.
WRITERS = {
    "coco": write_coco,
    "lvis": write_lvis,
    "voc": write_voc,
    "yolo": write_yolo,
    "yolo list": write_yolo_list,
    "cvat": write_cvat,
    "label-studio": write_label_studio,
}
YES = None
NO_FILES = "images are generated; there are no files of annotations"
NO_CROWDS = "the format cannot mark a crowd"
XML_IDS = "ids are texts: XML has no numbers, and pandas does not write it"
# Promises of every format, or the reason why a format cannot keep one.
TABLE = {
    "size": {"yolo": "label files contain fractions of the image and no size"},
    "unicode": {},
    "names": {},
    "crowd": {"yolo": NO_CROWDS, "cvat": NO_CROWDS, "label-studio": NO_CROWDS},
    "ids": {"voc": XML_IDS, "cvat": XML_IDS},
    "sides": {},
    "empty": {},
}
TABLE = {
    promise: {format: reasons.get(format, YES) for format in FORMATS} | {"shapes": NO_FILES}
    for promise, reasons in TABLE.items()
}


def layouts_with(promise):
    """Parametrizes over the layouts of all formats that keep the promise."""
    layouts = [layout for layout in WRITERS if TABLE[promise][layout.split()[0]] is YES]
    return pytest.mark.parametrize("layout", layouts)


def test_every_format_makes_every_promise_or_gives_a_reason():
    layouts = {layout.split()[0] for layout in WRITERS}
    for promise, cells in TABLE.items():
        assert cells.keys() == FORMATS.keys(), promise
        for format, reason in cells.items():
            assert format in layouts if reason is YES else len(reason) > 20, (promise, format)


def open_layout(tmp_path, layout, scene, **options):
    spec = WRITERS[layout](tmp_path, scene)
    return open_dataset(f"{layout.split()[0]}:{spec}", masks=scene.has_mask, **options)


def check_object(dataset, scene):
    """Checks that the image has its object, in pixels."""
    image, target = dataset[0]
    assert image.shape == (3, HEIGHT, WIDTH) and dataset.names == (scene.category,)
    assert target["boxes"].tolist() == [pytest.approx([X, Y, X + W, Y + H])]
    assert target["labels"].tolist() == [1]
    if scene.has_mask:
        expected = np.zeros((1, HEIGHT, WIDTH), np.uint8)
        expected[0, Y : Y + H, X : X + W] = 1
        assert np.array_equal(target["masks"], expected)


@layouts_with("size")
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(
    "sides", [(MISSING, MISSING), ("", ""), (0, 0), (0, HEIGHT), (WIDTH, MISSING), (0.0, 0.0)]
)
def test_missing_or_zero_size_is_read_from_the_file(tmp_path, layout, has_mask, sides):
    if layout == "cvat" and sides == (0.0, 0.0):
        sides = ("0", "00")
    scene = Scene(sides=sides, has_mask=has_mask)
    dataset = open_layout(tmp_path, layout, scene)
    check_object(dataset, scene)
    assert (dataset.images[0]["width"], dataset.images[0]["height"]) == (WIDTH, HEIGHT)


@layouts_with("size")
@pytest.mark.parametrize("has_mask", [False, True])
def test_missing_image_without_a_size_is_reported_once(tmp_path, layout, has_mask):
    scene = Scene(sides=(0, 0), has_mask=has_mask)
    open_layout(tmp_path, layout, scene).image_path(0).unlink()
    with pytest.raises(AnnotationError, match=r": 1 broken .*: missing file: .*a\.(png|jpg)"):
        open_dataset(f"{layout.split()[0]}:{tmp_path}", masks=has_mask)


NAME = "Été/Café_Ü.png"
# Mixes decomposed and composed characters, as a file renamed on a Mac may.
MIXED = composed("Été/Caf") + decomposed("é_") + composed("Ü.png")
# Neither NFC nor NFD: macOS keeps one of its characters, which NFC replaces.
NEITHER_FORM = composed("Été/Caf") + "\ufa10_" + decomposed("Ü.png")


@layouts_with("unicode")
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(
    ("listed_name", "file"),
    [
        (composed(NAME), decomposed(NAME)),
        (decomposed(NAME), composed(NAME)),
        (composed(NAME), MIXED),
        (decomposed(NAME), MIXED),
        (MIXED, composed(NAME)),
        (composed(NEITHER_FORM), NEITHER_FORM),
    ],
)
def test_files_are_found_in_any_unicode_form(tmp_path, layout, listed_name, file, has_mask):
    scene = Scene(listed_name=listed_name, file=file, has_mask=has_mask)
    dataset = open_layout(tmp_path, layout, scene, on_error="skip")
    check_object(dataset, scene)
    assert not dataset.skipped and len(dataset) == 1
    # The name on disk, with its upper and lower case.
    assert dataset.images[0]["file_name"].endswith(file)
    assert dataset.image_path(0).is_file()


@layouts_with("unicode")
@pytest.mark.parametrize("listed_name", [composed("é.png"), decomposed("é.png")])
def test_exact_name_wins_over_another_unicode_form(tmp_path, layout, listed_name):
    scene = Scene(listed_name=listed_name, file=listed_name)
    other = (
        composed(listed_name) if listed_name == decomposed(listed_name) else decomposed(listed_name)
    )
    WRITERS[layout](tmp_path, replace(scene, file=other, listed_name=other, has_object=False))
    dataset = open_layout(tmp_path, layout, scene)
    names = [image["file_name"].rpartition("/")[2] for image in dataset.images]
    objects = {name: len(target["boxes"]) for name, (_, target) in zip(names, dataset, strict=True)}
    # Without a list of images, a YOLO dataset contains the whole folder.
    assert objects == ({listed_name: 1, other: 0} if layout == "yolo" else {listed_name: 1})


@layouts_with("unicode")
def test_upper_and_lower_case_are_different_names(tmp_path, layout):
    listed_name, file = composed("ÉA.png"), decomposed("éa.png")
    with pytest.raises(AnnotationError, match="missing file|broken annotation file|without an im"):
        open_layout(tmp_path, layout, Scene(listed_name=listed_name, file=file))


NAMES = "007 1:30 1.50 no 1e3 0x10 1_000 +1 null ~ Null True 2026-13-45 .inf ÉCLAIR".split()


@layouts_with("names")
@pytest.mark.parametrize("category", NAMES)
def test_class_names_stay_as_written(tmp_path, layout, category):
    scene = Scene(category=category)
    check_object(open_layout(tmp_path, layout, scene), scene)


@pytest.mark.parametrize("name", ["1.50", "1e3", "7", "1.0", "-0"])
@pytest.mark.parametrize("layout", ["coco", "lvis"])
def test_numeric_names_in_json_stay_as_written(tmp_path, layout, name):
    path = WRITERS[layout](tmp_path, Scene())
    path.write_text(path.read_text().replace('"oak"', name))
    assert open_dataset(path).names == (name,)


def test_names_in_yaml_lists_stay_as_written(tmp_path):
    path = write_yolo(tmp_path, Scene())
    path.write_text("{train: images/train, val: ~, test: null, nc: 4, names: [007, 1:30, no, =]}")
    assert open_dataset(path).names == ("007", "1:30", "no", "=")


def test_folders_in_yaml_stay_as_written(tmp_path):
    write_image(tmp_path / "1_0/007/a.png")
    write_file(tmp_path / "1_0/007/a.txt", label(Scene()))
    path = write_file(tmp_path / "data.yaml", "path: 1_0\ntrain: 007\nnames: [oak]\n")
    check_object(open_dataset(path), Scene())


@pytest.mark.parametrize("names", ["007", "1.50", "0x10", "1.50,7", "1e3,no"])
@pytest.mark.parametrize("layout", ["voc", "label-studio"])
def test_names_in_options_stay_as_written(tmp_path, layout, names):
    category, *_ = names.split(",")
    spec = WRITERS[layout](tmp_path, Scene(category=category))
    assert open_dataset(f"{layout}:{spec}?names={names}").names == tuple(names.split(","))
    assert open_dataset(f"{layout}:{spec}?names=['{category}','b']").names == (category, "b")


def test_splits_and_folders_in_options_stay_as_written(tmp_path):
    write_voc(tmp_path / "voc", Scene())
    (tmp_path / "voc/ImageSets/Main/trainval.txt").rename(tmp_path / "voc/ImageSets/Main/1_0.txt")
    assert len(open_dataset(f"{tmp_path}/voc?split=1_0")) == 1
    path = write_coco(tmp_path / "2017", Scene())
    with pytest.raises(AnnotationError, match="missing file: 2017/a.png"):
        open_dataset(f"{path}?image_dir=2017")


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_names_in_class_maps_stay_as_written(tmp_path, suffix):
    text = '{"a": 1.50, "b": 7}' if suffix == "json" else "{a: 1.50, b: 7}"
    assert read_class_map(str(write_file(tmp_path / f"m.{suffix}", text))) == {
        "a": "1.50",
        "b": "7",
    }
    path = write_file(tmp_path / "m.yml", "007: 1:30\nno: 0x10\nnull: ~\n")
    assert read_class_map(str(path)) == {"007": "1:30", "no": "0x10", "null": "~"}


@layouts_with("crowd")
def test_crowds_are_in_ground_truth_but_not_in_targets(tmp_path, layout):
    dataset = open_layout(tmp_path, layout, Scene(is_crowd=True, category="dog"))
    assert len(dataset[0][1]["boxes"]) == 0
    assert [a["iscrowd"] for a in dataset.ground_truth()["annotations"]] == [1]


@layouts_with("ids")
def test_integral_float_ids_become_integers(tmp_path, layout):
    truths = [
        open_layout(tmp_path / number.__name__, layout, Scene(number=number)).ground_truth()
        for number in (int, float)
    ]
    for annotation in (a for truth in truths for a in truth["annotations"]):
        annotation.pop("where", None)
    # 7 == 7.0, but their JSON differs.
    assert json.dumps(truths[0], sort_keys=True) == json.dumps(truths[1], sort_keys=True)
    assert len(truths[0]["annotations"]) == 1


@pytest.mark.parametrize("id", [7.5, float("nan"), float("inf"), -1e300])
def test_other_float_ids_are_rejected(tmp_path, id):
    path = write_coco(tmp_path, Scene())
    data = json.loads(path.read_text())
    data["annotations"][0]["image_id"] = id
    with pytest.raises(AnnotationError, match=f"annotation 9: unknown image: {str(id)[:4]}"):
        open_dataset(write_file(path, json.dumps(data)))
    data["images"][0]["id"] = 7.5
    with pytest.raises(AnnotationError, match=r"images\[0\]: id is 7.5"):
        open_dataset(write_file(path, json.dumps(data)))


@layouts_with("sides")
@pytest.mark.parametrize(("width", "message"), [(-3, "negative width or height"), (0, "zero area")])
def test_negative_width_and_zero_area_are_distinguished(tmp_path, layout, width, message):
    scene = Scene(width=width)
    with pytest.raises(AnnotationError, match=f"1 broken .*{message}: bbox .*{width}"):
        open_layout(tmp_path, layout, scene)
    assert open_layout(tmp_path, layout, scene, on_error="skip").skipped == {message: 1}


@layouts_with("empty")
def test_image_without_objects_is_kept(tmp_path, layout):
    dataset = open_layout(tmp_path, layout, Scene(has_object=False))
    assert len(dataset) == 1 and len(dataset[0][1]["boxes"]) == 0


@layouts_with("empty")
def test_empty_annotation_file_is_named_in_the_error(tmp_path, layout):
    path = Path(str(WRITERS[layout](tmp_path, Scene())))
    inside = {"voc": "Annotations/a.xml", "yolo list": "obj.names"}
    file = path / inside.get(layout, "")
    file.write_text("")
    with pytest.raises(AnnotationError, match=file.name.replace(".", r"\.")):
        open_dataset(f"{layout.split()[0]}:{path}")
