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
ABSENT = object()


def composed(text):
    return unicodedata.normalize("NFC", text)


def decomposed(text):
    return unicodedata.normalize("NFD", text)


@dataclass(frozen=True)
class Scene:
    """One image with at most one object, to be written in any format."""

    told: str = "a.png"  # the name of the image in the annotations
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
        return {key: side for key, side in pairs if side is not ABSENT}

    def attributes(self):
        return " ".join(f'{key}="{value}"' for key, value in self.size().items())


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def put_image(path, values=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8) if values is None else values).save(path)


def write_coco(root, scene, naming="file_name", **category):
    put_image(root / scene.file)
    id = scene.number
    shape = {"segmentation": [POLYGON]} if scene.has_mask else {}
    found = {"id": id(9), "image_id": id(7), "category_id": id(3), "bbox": [X, Y, scene.width, H]}
    found |= {"iscrowd": int(scene.is_crowd)} | shape
    data = {
        "images": [{"id": id(7), naming: scene.told} | scene.size()],
        "categories": [{"id": id(3), "name": scene.category} | category],
        "annotations": [found] * scene.has_object,
    }
    return put(root / "data.json", json.dumps(data))


def write_lvis(root, scene):
    told = replace(scene, told=f"http://host/{scene.told}")
    path = write_coco(root, told, "coco_url", frequency="f")
    data = json.loads(path.read_text())
    data["images"][0]["neg_category_ids"] = [scene.number(3)]
    return put(path, json.dumps(data))


def write_voc(root, scene):
    """Writes the annotations under the name on disk, because only that names the image."""
    stem, told = Path(scene.file).with_suffix(""), Path(scene.told).with_suffix("")
    put_image(root / "JPEGImages" / scene.file)
    corners = {"xmin": X + 1, "ymin": Y + 1, "xmax": X + scene.width, "ymax": Y + H}
    box = "".join(f"<{name}>{value}</{name}>" for name, value in corners.items())
    sides = "".join(f"<{name}>{value}</{name}>" for name, value in scene.size().items())
    found = (
        f"<object><name>{scene.category}</name><difficult>{int(scene.is_crowd)}</difficult>"
        f"<bndbox>{box}</bndbox></object>"
    )
    text = f"<annotation><size>{sides}</size>{found * scene.has_object}</annotation>"
    put(root / f"Annotations/{stem}.xml", text)
    put(root / "ImageSets/Main/trainval.txt", f"{told}\n")
    put(root / "ImageSets/Segmentation/trainval.txt", f"{told}\n")
    if scene.has_mask:
        values = np.zeros((HEIGHT, WIDTH), np.uint8)
        values[Y : Y + H, X : X + W] = 1
        put_image(root / f"SegmentationObject/{stem}.png", values)
    return root


def label(scene):
    shares = [value / side for value, side in zip(POLYGON, (WIDTH, HEIGHT) * 4, strict=True)]
    middle = (X + W / 2) / WIDTH, (Y + H / 2) / HEIGHT
    values = shares if scene.has_mask else [*middle, scene.width / WIDTH, H / HEIGHT]
    return " ".join(map(str, [scene.number(0), *values])) if scene.has_object else ""


def write_yolo(root, scene):
    """Writes the image folder into data.yaml, and names the label file after `told`."""
    put_image(root / "images/train" / scene.file)
    told = Path("train", scene.told)
    put(root / "labels" / told.with_suffix(".txt"), label(scene))
    folder = told.parent.as_posix()
    return put(root / "data.yaml", f"train: images/{folder}\nnames:\n  0: {scene.category}\n")


def write_yolo_list(root, scene):
    put_image(root / scene.file)
    put((root / scene.file).with_name(Path(scene.told).stem + ".txt"), label(scene))
    put(root / "train.txt", f"data/{scene.told}\n")
    return put(root / "obj.names", f"{scene.category}\n").parent


def write_cvat(root, scene):
    put_image(root / "images" / scene.file)
    if scene.has_mask:
        place = f'left="{X}" top="{Y}" width="{W}" height="{H}" rle="0,{W * H}"'
        found = f'<mask label="{scene.category}" {place}/>'
    else:
        corners = f'xtl="{X}" ytl="{Y}" xbr="{X + scene.width}" ybr="{Y + H}"'
        found = f'<box label="{scene.category}" {corners}/>'
    labels = f"<labels><label><name>{scene.category}</name></label></labels>"
    folder, _, name = scene.told.rpartition("/")
    image = f'<image id="7" name="{name}" subset="{folder}" {scene.attributes()}>'
    text = f"<meta><task>{labels}</task></meta>{image}{found * scene.has_object}</image>"
    return put(root / "annotations.xml", f"<annotations>{text}</annotations>")


def write_label_studio(root, scene):
    put_image(root / scene.file)
    kind = "polygonlabels" if scene.has_mask else "rectanglelabels"
    x, y = 100 / WIDTH, 100 / HEIGHT
    value = {"x": X * x, "y": Y * y, "width": scene.width * x, "height": H * y}
    if scene.has_mask:
        value = {"points": [[POLYGON[i] * x, POLYGON[i + 1] * y] for i in range(0, 8, 2)]}
    region = {"type": kind, "value": value | {kind: [scene.category]}}
    region |= scene.size("original_width", "original_height")
    task = {"id": scene.number(7), "data": {"image": f"/data/local-files/?d={scene.told}"}}
    task["annotations"] = [{"result": [region] * scene.has_object}]
    path = put(root / "export.json", json.dumps([task]))
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
    "size": {"yolo": "label files hold shares of the image, and no size"},
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


def keeping(promise):
    """Parametrizes over the layouts of all formats that keep the promise."""
    kept = [way for way in WRITERS if TABLE[promise][way.split()[0]] is YES]
    return pytest.mark.parametrize("way", kept)


def test_every_format_makes_every_promise_or_gives_a_reason():
    ways = {way.split()[0] for way in WRITERS}
    for promise, cells in TABLE.items():
        assert cells.keys() == FORMATS.keys(), promise
        for format, reason in cells.items():
            assert format in ways if reason is YES else len(reason) > 20, (promise, format)


def opened(tmp_path, way, scene, **options):
    spec = WRITERS[way](tmp_path, scene)
    return open_dataset(f"{way.split()[0]}:{spec}", masks=scene.has_mask, **options)


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


@keeping("size")
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(
    "sides", [(ABSENT, ABSENT), ("", ""), (0, 0), (0, HEIGHT), (WIDTH, ABSENT), (0.0, 0.0)]
)
def test_missing_or_zero_size_is_read_from_the_file(tmp_path, way, has_mask, sides):
    if way == "cvat" and sides == (0.0, 0.0):
        sides = ("0", "00")
    scene = Scene(sides=sides, has_mask=has_mask)
    dataset = opened(tmp_path, way, scene)
    check_object(dataset, scene)
    assert (dataset.images[0]["width"], dataset.images[0]["height"]) == (WIDTH, HEIGHT)


@keeping("size")
@pytest.mark.parametrize("has_mask", [False, True])
def test_missing_image_without_a_size_is_reported_once(tmp_path, way, has_mask):
    scene = Scene(sides=(0, 0), has_mask=has_mask)
    opened(tmp_path, way, scene).image_path(0).unlink()
    with pytest.raises(AnnotationError, match=r": 1 broken .*: missing file: .*a\.(png|jpg)"):
        open_dataset(f"{way.split()[0]}:{tmp_path}", masks=has_mask)


NAME = "Été/Café_Ü.png"
# Mixes decomposed and composed characters, as a file renamed on a Mac may.
MIXED = composed("Été/Caf") + decomposed("é_") + composed("Ü.png")
# Neither NFC nor NFD: macOS keeps one of its characters, which NFC replaces.
KEPT = composed("Été/Caf") + "\ufa10_" + decomposed("Ü.png")


@keeping("unicode")
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize(
    ("told", "file"),
    [
        (composed(NAME), decomposed(NAME)),
        (decomposed(NAME), composed(NAME)),
        (composed(NAME), MIXED),
        (decomposed(NAME), MIXED),
        (MIXED, composed(NAME)),
        (composed(KEPT), KEPT),
    ],
)
def test_files_are_found_in_any_unicode_form(tmp_path, way, told, file, has_mask):
    scene = Scene(told=told, file=file, has_mask=has_mask)
    dataset = opened(tmp_path, way, scene, on_error="skip")
    check_object(dataset, scene)
    assert not dataset.skipped and len(dataset) == 1
    # The name on disk, with its upper and lower case.
    assert dataset.images[0]["file_name"].endswith(file)
    assert dataset.image_path(0).is_file()


@keeping("unicode")
@pytest.mark.parametrize("told", [composed("é.png"), decomposed("é.png")])
def test_exact_name_wins_over_another_unicode_form(tmp_path, way, told):
    scene = Scene(told=told, file=told)
    other = composed(told) if told == decomposed(told) else decomposed(told)
    WRITERS[way](tmp_path, replace(scene, file=other, told=other, has_object=False))
    dataset = opened(tmp_path, way, scene)
    names = [image["file_name"].rpartition("/")[2] for image in dataset.images]
    objects = {name: len(target["boxes"]) for name, (_, target) in zip(names, dataset, strict=True)}
    # Without a list of images, a YOLO dataset contains the whole folder.
    assert objects == ({told: 1, other: 0} if way == "yolo" else {told: 1})


@keeping("unicode")
def test_upper_and_lower_case_are_different_names(tmp_path, way):
    told, file = composed("ÉA.png"), decomposed("éa.png")
    with pytest.raises(AnnotationError, match="missing file|broken annotation file|without an im"):
        opened(tmp_path, way, Scene(told=told, file=file))


NAMES = "007 1:30 1.50 no 1e3 0x10 1_000 +1 null ~ Null True 2026-13-45 .inf ÉCLAIR".split()


@keeping("names")
@pytest.mark.parametrize("category", NAMES)
def test_class_names_stay_as_written(tmp_path, way, category):
    scene = Scene(category=category)
    check_object(opened(tmp_path, way, scene), scene)


@pytest.mark.parametrize("name", ["1.50", "1e3", "7", "1.0", "-0"])
@pytest.mark.parametrize("way", ["coco", "lvis"])
def test_numeric_names_in_json_stay_as_written(tmp_path, way, name):
    path = WRITERS[way](tmp_path, Scene())
    path.write_text(path.read_text().replace('"oak"', name))
    assert open_dataset(path).names == (name,)


def test_names_in_yaml_lists_stay_as_written(tmp_path):
    path = write_yolo(tmp_path, Scene())
    path.write_text("{train: images/train, val: ~, test: null, nc: 4, names: [007, 1:30, no, =]}")
    assert open_dataset(path).names == ("007", "1:30", "no", "=")


def test_folders_in_yaml_stay_as_written(tmp_path):
    put_image(tmp_path / "1_0/007/a.png")
    put(tmp_path / "1_0/007/a.txt", label(Scene()))
    path = put(tmp_path / "data.yaml", "path: 1_0\ntrain: 007\nnames: [oak]\n")
    check_object(open_dataset(path), Scene())


@pytest.mark.parametrize("names", ["007", "1.50", "0x10", "1.50,7", "1e3,no"])
@pytest.mark.parametrize("way", ["voc", "label-studio"])
def test_names_in_options_stay_as_written(tmp_path, way, names):
    category, *_ = names.split(",")
    spec = WRITERS[way](tmp_path, Scene(category=category))
    assert open_dataset(f"{way}:{spec}?names={names}").names == tuple(names.split(","))
    assert open_dataset(f"{way}:{spec}?names=['{category}','b']").names == (category, "b")


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
    assert read_class_map(str(put(tmp_path / f"m.{suffix}", text))) == {"a": "1.50", "b": "7"}
    path = put(tmp_path / "m.yml", "007: 1:30\nno: 0x10\nnull: ~\n")
    assert read_class_map(str(path)) == {"007": "1:30", "no": "0x10", "null": "~"}


@keeping("crowd")
def test_crowds_are_in_ground_truth_but_not_in_targets(tmp_path, way):
    dataset = opened(tmp_path, way, Scene(is_crowd=True, category="dog"))
    assert len(dataset[0][1]["boxes"]) == 0
    assert [a["iscrowd"] for a in dataset.ground_truth()["annotations"]] == [1]


@keeping("ids")
def test_whole_float_ids_become_integers(tmp_path, way):
    truths = [
        opened(tmp_path / number.__name__, way, Scene(number=number)).ground_truth()
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
        open_dataset(put(path, json.dumps(data)))
    data["images"][0]["id"] = 7.5
    with pytest.raises(AnnotationError, match=r"images\[0\]: id is 7.5"):
        open_dataset(put(path, json.dumps(data)))


@keeping("sides")
@pytest.mark.parametrize(("width", "message"), [(-3, "negative width or height"), (0, "zero area")])
def test_negative_width_and_zero_area_are_distinguished(tmp_path, way, width, message):
    scene = Scene(width=width)
    with pytest.raises(AnnotationError, match=f"1 broken .*{message}: bbox .*{width}"):
        opened(tmp_path, way, scene)
    assert opened(tmp_path, way, scene, on_error="skip").skipped == {message: 1}


@keeping("empty")
def test_image_without_objects_is_kept(tmp_path, way):
    dataset = opened(tmp_path, way, Scene(has_object=False))
    assert len(dataset) == 1 and len(dataset[0][1]["boxes"]) == 0


@keeping("empty")
def test_empty_annotation_file_is_named_in_the_error(tmp_path, way):
    place = Path(str(WRITERS[way](tmp_path, Scene())))
    inside = {"voc": "Annotations/a.xml", "yolo list": "obj.names"}
    file = place / inside.get(way, "")
    file.write_text("")
    with pytest.raises(AnnotationError, match=file.name.replace(".", r"\.")):
        open_dataset(f"{way.split()[0]}:{place}")
