# SPDX-License-Identifier: MIT
"""`detops data check`: problems within and between datasets, samples, anchors."""

import json
import re
import shlex
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from detops import cli
from detops.cli.data import check
from detops.cli.options import PACKAGE
from detops.config import load_config
from detops.data import CocoDetection
from detops.data.duplicate_images import find_duplicate_images
from detops.engine import Detector
from detops.engine.anchor_fit import anchor_generator, fit_anchors, input_scale
from detops.engine.data_check import find_problems
from detops.modeling import build_detection_model
from detops.ops import box_iou

VAL = PACKAGE / "assets" / "tree_crowns" / "val.jpg"
CONFIG = PACKAGE / "configs" / "tree_crowns.yaml"
BOX = [5, 5, 30, 20]


def view(number):
    """Returns one crop of a photograph; crops of different numbers look different."""
    x, y = 70 * (number % 4), 90 * (number // 4)
    return Image.open(VAL).crop((x, y, x + 80, y + 70))


def write(folder, views, name="data", names=("tree",), **changes):
    """Writes a COCO file with one image per view and one object in each image."""
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for i, image in enumerate(views):
        image.save(folder / f"{name}{i}.png")
        images.append({"id": i, "file_name": f"{name}{i}.png", "width": 80, "height": 70})
        annotations.append({"id": i, "image_id": i, "category_id": 1, "bbox": BOX})
    categories = [{"id": i, "name": kind} for i, kind in enumerate(names, start=1)]
    data = {"images": images, "annotations": annotations, "categories": categories}
    for key, extra in changes.items():
        data[key] = data[key] + extra
    (folder / f"{name}.json").write_text(json.dumps(data))
    return folder / f"{name}.json"


def problems_in(*paths, **options):
    return find_problems([str(path) for path in paths], **options).problems


def test_sound_dataset_has_no_problems(tmp_path):
    assert problems_in(write(tmp_path, map(view, range(6)))) == []


def annotation(**changes):
    return {"id": 9, "image_id": 0, "category_id": 1, "bbox": [1, 1, 9, 9]} | changes


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"bbox": [1, 1, 0, 9]}, ["annotation 9: zero area"]),
        ({"bbox": [90, 1, 9, 9]}, ["annotation 9: box outside the image"]),
        ({"category_id": 7}, ["annotation 9: unknown category: 7"]),
        ({"image_id": 7}, ["annotation 9: unknown image: 7"]),
        ({"id": 1}, ["annotation 1: duplicate id: 2 objects have it"]),
        ({"id": [9]}, ["annotation [9]: broken id: expected a number or text"]),
        ({"bbox": BOX}, ["image 0: duplicate object: 2 of tree with bbox [5, 5, 30, 20]"]),
        ({}, []),
    ],
)
def test_broken_objects_are_reported(tmp_path, changes, problems):
    path = write(tmp_path, [view(0), view(5)], annotations=[annotation(**changes)])
    lines = problems_in(path)
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{path}: {problem}")


def test_broken_images_are_reported(tmp_path):
    extra_images = [{"id": 5, "file_name": "none.png", "width": 80, "height": 70}]
    extra_images += [{"id": 0, "file_name": "data1.png", "width": 80, "height": 70}]
    extra_images += [{"id": 6, "file_name": "data1.png", "width": 80, "height": 70}]
    path = write(tmp_path, [view(0), view(5), view(6), view(7)], images=extra_images)
    content = (tmp_path / "data2.png").read_bytes()
    (tmp_path / "data2.png").write_bytes(content[: len(content) // 2])
    Image.new("RGB", (9, 9)).save(tmp_path / "data3.png")
    lines = [line.removeprefix(f"{path}: ") for line in problems_in(path)]
    starts = ["image 0: duplicate image id", "image 2: unreadable image"]
    starts += ["image 3: wrong image size", "image 5: missing file"]
    starts += [f"image 6 ({tmp_path}/data1.png): same file as image 1 "]
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines


def test_images_shared_by_datasets_are_reported_as_leakage(tmp_path):
    resized = view(5).resize((160, 140), Image.Resampling.BICUBIC)
    train = write(tmp_path, [view(0), view(5)], "train")
    val = write(tmp_path, [view(6), view(7)], "val")
    resized.save(tmp_path / "again.jpg", quality=60)
    data = json.loads(val.read_text())
    data["images"].append({"id": 9, "file_name": "again.jpg"})
    data["images"].append({"id": 10, "file_name": "train0.png"})
    val.write_text(json.dumps(data))
    lines = problems_in(train, val)
    assert lines == [
        f"{val}: image {id} ({tmp_path}/{file}): leakage: same {kind} as image {other} "
        f"({tmp_path}/train{other}.png) of {train}"
        for id, file, kind, other in ((10, "train0.png", "file", 0), (9, "again.jpg", "image", 1))
    ]
    assert problems_in(train, train) == []


def test_differing_categories_are_reported(tmp_path):
    one = write(tmp_path, [view(0)], "one", ["tree", "house"])
    other = write(tmp_path, [view(5)], "other", ["Tree", "car"])
    assert problems_in(one, other) == [
        f"{other}: categories ['Tree', 'car'] differ from ['tree', 'house'] of {one}"
    ]
    assert problems_in(one, other, class_map={"car": "house"}) == []


# ---- same images


def test_variants_of_one_image_are_recognized(tmp_path):
    image = view(5)
    variants = {
        "a.png": view(0),
        "b.png": image,
        "c.jpg": image,
        "d.png": image.resize((240, 210), Image.Resampling.BICUBIC),
        "e.png": ImageEnhance.Brightness(image).enhance(1.01),
        "f.png": view(6),
        "h.png": Image.new("RGB", (80, 70), (10, 10, 10)),
        "i.png": Image.new("RGB", (80, 70), (90, 90, 90)),
        "j.png": Image.new("RGB", (20, 20), (10, 10, 10)),
    }
    for name, variant in variants.items():
        variant.save(tmp_path / name)
    (tmp_path / "g.png").write_bytes(b"no image")
    paths = [tmp_path / name for name in "a.png b.png c.jpg d.png e.png f.png g.png".split()]
    paths += [tmp_path / name for name in ("h.png", "i.png", "j.png", "none.png")]
    assert find_duplicate_images(paths) == [[1, 2, 3, 4], [7, 9]]
    assert find_duplicate_images([]) == find_duplicate_images(paths[:1]) == []


@given(st.integers(0, 2**32 - 1))
def test_noise_images_are_never_the_same(tmp_path_factory, seed):
    folder = tmp_path_factory.getbasetemp()
    noise = np.random.default_rng(seed).integers(0, 256, (2, 64, 64), dtype=np.uint8)
    paths = [folder / f"noise{i}.png" for i in range(2)]
    for path, pixels in zip(paths, noise, strict=True):
        Image.fromarray(pixels).save(path)
    assert find_duplicate_images(paths) == [] and find_duplicate_images([paths[0]] * 2) == [[0, 1]]


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_same_images_are_found_at_more_than_8_bits(tmp_path, dtype):
    noise = np.random.default_rng(0).integers(0, 65536, (2, 64, 64), dtype=np.uint16)
    grey = np.asarray(view(5).convert("L"))
    images = [*noise, grey.astype(np.uint16) * 257]
    if dtype == np.float32:
        images = [(image / 65535).astype(dtype) for image in images]
    paths = [tmp_path / f"{i}.tif" for i in range(3)]
    for path, pixels in zip(paths, images, strict=True):
        Image.fromarray(pixels).save(path)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert find_duplicate_images([*paths, tmp_path / "grey.png"]) == [[2, 3]]


@pytest.mark.parametrize("package", ["imagehash", "matplotlib"])
def test_missing_package_is_reported_before_decoding_images(tmp_path, monkeypatch, capsys, package):
    def fail(*arguments, **options):
        raise AssertionError("opened the dataset and decoded every image")

    monkeypatch.setattr("detops.engine.data_check.open_dataset", fail)
    for name in (package, f"{package}.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    path = write(tmp_path, [view(0)])
    status, output = run(capsys, path, "--output", tmp_path / "out", "--config", CONFIG)
    assert status == 2
    assert package in output.err and "pip install 'detops[plots]'" in output.err


# ---- anchors


def one_image_dataset(tmp_path, boxes):
    view(0).save(tmp_path / "a.png")
    data = {
        "images": [{"id": 0, "file_name": "a.png", "width": 80, "height": 70}],
        "categories": [{"id": 1, "name": "tree"}],
        "annotations": [{"image_id": 0, "category_id": 1, "bbox": box} for box in boxes],
    }
    (tmp_path / "a.json").write_text(json.dumps(data))
    return CocoDetection(tmp_path / "a.json")


NO_RESIZING = ["INPUT.MIN_SIZE_TEST", 0]


def fit_dataset(cfg, dataset):
    return fit_anchors(cfg, anchor_generator(cfg), dataset.ground_truth())


def test_boxes_match_anchors_of_their_size(tmp_path):
    cfg = load_config(CONFIG, NO_RESIZING)
    boxes = [[10, 10, 24, 24], [10, 10, 52, 52], [1, 1, 2, 2], [3, 30, 70, 3]]
    fit = fit_dataset(cfg, one_image_dataset(tmp_path, boxes))
    assert fit.strides == (4, 8, 16)
    assert fit.anchor_sides == ((24, 36), (52, 72), (100, 144))
    assert fit.sides.tolist() == pytest.approx([24, 52, 2, 210**0.5])
    # The nearest anchor is shifted from the box by at most half a stride.
    assert fit.iou[0] >= (22 / 26) * (22 / 26) and fit.iou[1] >= (48 / 56) * (48 / 56)
    assert fit.level[:2].tolist() == [0, 1]
    assert [fit.level_counts(level)[1] for level in range(3)] == [1, 1, 0]
    assert fit.unmatched == 2


def test_anchor_fit_without_boxes_is_empty(tmp_path):
    fit = fit_dataset(load_config(CONFIG), one_image_dataset(tmp_path, []))
    assert len(fit.iou) == fit.unmatched == 0 and fit.level_counts(0) == (0, 0)


coordinates = st.tuples(
    st.integers(0, 40), st.integers(0, 30), st.integers(4, 40), st.integers(4, 40)
)


@pytest.mark.slow
@settings(max_examples=20)  # each example builds a network
@given(st.lists(coordinates, min_size=1, max_size=6))
def test_best_iou_is_the_maximum_over_all_anchors(tmp_path_factory, boxes):
    """Compares with anchors on feature maps that extend beyond the image on all sides."""
    cfg = load_config(CONFIG, NO_RESIZING)
    dataset = one_image_dataset(tmp_path_factory.getbasetemp(), [list(box) for box in boxes])
    generator = anchor_generator(cfg)
    fit = fit_anchors(cfg, generator, dataset.ground_truth())
    best = []
    for level, stride in enumerate(generator.strides):
        shifts = torch.arange(-10, 200 // stride) * stride
        y, x = torch.meshgrid(shifts, shifts, indexing="ij")
        grid = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
        anchors = (grid + generator.cell_anchors[level]).reshape(-1, 4)
        best.append(box_iou(dataset.target(0)["boxes"], anchors).amax(dim=1))
    torch.testing.assert_close(fit.iou, torch.stack(best).amax(dim=0), atol=1e-5, rtol=0)


def test_seen_scale_includes_tiling_and_resizing():
    cfg = load_config(CONFIG)
    assert input_scale(cfg, 400, 400) == 256 / 160  # in a tile
    assert input_scale(cfg, 100, 80) == 256 / 160  # padded to a tile
    assert input_scale(load_config(), 600, 800) == 800 / 600
    assert input_scale(load_config(None, NO_RESIZING), 600, 800) == 1


@pytest.mark.parametrize("size", [(400, 400), (100, 80), (100, 300)])
def test_seen_scale_equals_the_scale_of_the_model_input(size):
    cfg = load_config(CONFIG)
    detector = Detector.from_config(build_detection_model(cfg), ["tree"], cfg, "cpu")
    for model_input in detector.inputs(torch.zeros(3, *size, dtype=torch.uint8)):
        longest = cfg.INPUT.MAX_SIZE_TEST / max(model_input.shape[1:])
        scale = min(cfg.INPUT.MIN_SIZE_TEST / min(model_input.shape[1:]), longest)
        assert input_scale(cfg, *size) == scale


@pytest.mark.slow
def test_retinanet_anchors_are_fitted(tmp_path):
    cfg = load_config(PACKAGE / "configs/retinanet_R_50_FPN_1x.yaml", NO_RESIZING)
    fit = fit_dataset(cfg, one_image_dataset(tmp_path, [[10, 10, 32, 32]]))
    assert fit.strides == (8, 16, 32, 64, 128) and (fit.high, fit.low) == (0.5, 0.4)
    assert fit.level_counts(0) == (1, 1)


# ---- the command


def run(capsys, *arguments):
    status = cli.main(["data", "check", *map(str, arguments)])
    return status, capsys.readouterr()


def test_check_command_writes_report_and_plots(tmp_path, capsys):
    path = write(tmp_path, map(view, range(6)), annotations=[annotation(bbox=[-9, 1, 20, 9])])
    output = tmp_path / "new" / "out"
    status, printed = run(capsys, path, "--output", output, "--config", "configs/tree_crowns.yaml")
    assert status == 0, printed.err
    assert "6 images, 0 of them without objects" in printed.out and "no problems" in printed.out
    assert "corrected: 1 x box clipped to its image" in printed.out
    assert "of 7 boxes match no anchor (IoU below 0.3)" in printed.out
    assert (output / "problems.txt").read_text() == ""
    for name in ("1_samples.png", "1_box_sizes.png"):
        assert np.asarray(Image.open(output / name).convert("L")).std() > 5


def test_crowds_are_counted_in_a_separate_column(tmp_path, capsys):
    objects = [annotation(id=100 + i, bbox=[i, 1, 9, 9], iscrowd=i == 0) for i in range(3)]
    path = write(tmp_path, [view(0)], annotations=objects)
    printed = run(capsys, path, "--output", tmp_path)[1].out
    assert re.search(r"class\W+objects\W+crowds", printed) and re.search(r"tree\W+3\W+1\b", printed)


def test_problems_are_printed_and_exit_with_status_1(tmp_path, capsys):
    objects = [annotation(id=100 + i, bbox=[1, 1, 0, 9]) for i in range(30)]
    path = write(tmp_path, [view(0)], annotations=objects)
    status, printed = run(capsys, path, "--output", tmp_path)
    assert status == 1 and "30 problems, see" in printed.err
    assert printed.out.count("zero area") == 20 and "and 10 more" in printed.out
    assert len((tmp_path / "problems.txt").read_text().splitlines()) == 30


def test_problems_are_written_before_sample_images(tmp_path, monkeypatch, capsys):
    def fail(dataset):
        raise OSError("no space")

    monkeypatch.setattr("detops.engine.data_check.samples", fail)
    path = write(tmp_path, [view(0)], annotations=[annotation(bbox=[1, 1, 0, 9])])
    status, _ = run(capsys, path, "--output", tmp_path)
    assert status != 0 and "zero area" in (tmp_path / "problems.txt").read_text()


def test_missing_data_and_unwritable_output_exit_with_2(tmp_path, capsys):
    status, printed = run(capsys, tmp_path / "none.json", "--output", tmp_path)
    assert status == 2 and "none.json: cannot read" in printed.err
    file = tmp_path / "file"
    file.write_text("")
    status, printed = run(capsys, write(tmp_path, [view(0)]), "--output", file)
    assert status == 2 and f"{file}: cannot be written" in printed.err


def test_dataset_without_images_passes(tmp_path, capsys):
    status, printed = run(capsys, write(tmp_path, []), "--output", tmp_path / "out")
    assert status == 0 and "0 images" in printed.out


@pytest.mark.slow
def test_examples_in_the_help_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "my", [view(0)], "train")
    write(tmp_path / "my", [view(5)], "val")
    for split, number in (("train", 6), ("val", 7)):
        folder = tmp_path / "my" / "images" / split
        folder.mkdir(parents=True)
        view(number).save(folder / "a.png")
    (tmp_path / "my" / "data.yaml").write_text(
        "train: images/train\nval: images/val\nnames: [tree]\n"
    )
    text = check.__doc__.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith(" " * 8)]
    assert len(lines) == 3
    for line in lines:
        assert cli.main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert (tmp_path / "checked" / "2_samples.png").exists()
    assert (tmp_path / "data_check" / "1_box_sizes.png").exists()
