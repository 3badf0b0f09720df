# SPDX-License-Identifier: MIT
"""COCO data sets, images, augmentation, the loader."""

import json
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from detops.data import (
    AnnotationError,
    CocoDetection,
    ImageError,
    build_train_loader,
    load_datasets,
    load_image,
)
from detops.data.loader import SeededBatchSampler, orientations
from detops.data.transforms import RandomRotate90, RandomSquareCrop, TrainTransform, crop_boxes


def coco(**changes):
    data = {
        "images": [{"id": 7, "file_name": "a.png", "width": 40, "height": 30}],
        "categories": [{"id": 9, "name": "cat"}, {"id": 3, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 9, "bbox": [1, 2, 10, 5]},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 40, 30]},
        ],
    }
    return data | changes


@pytest.fixture
def write(tmp_path):
    Image.new("RGB", (40, 30), (200, 100, 50)).save(tmp_path / "a.png")

    def write(data, name="data.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def test_item(write):
    dataset = CocoDetection(write(coco()))
    image, target = dataset[0]
    assert image.shape == (3, 30, 40) and image.dtype == torch.uint8
    assert image[:, 0, 0].tolist() == [200, 100, 50]
    assert dataset.names == ("dog", "cat") and dataset.category_ids == (3, 9)
    assert target["labels"].tolist() == [2, 1]
    assert target["boxes"].tolist() == [[1, 2, 11, 7], [0, 0, 40, 30]]
    assert target["image_id"] == 7


def test_image_without_annotations(write):
    _, target = CocoDetection(write(coco(annotations=[])))[0]
    assert target["boxes"].shape == (0, 4) and target["labels"].shape == (0,)


def test_crowds_are_no_targets_but_are_evaluated(write):
    data = coco()
    data["annotations"][0]["iscrowd"] = 1
    dataset = CocoDetection(write(data))
    assert len(dataset[0][1]["boxes"]) == 1
    assert len(dataset.ground_truth()["annotations"]) == 2


BROKEN = [
    ({"bbox": [1, 1, 0, 4]}, "zero area"),
    ({"bbox": [1, 1, float("nan"), 4]}, "zero area"),
    ({"bbox": [30, 20, 20, 5]}, "outside the image"),
    ({"bbox": [-5, 2, 10, 5]}, "outside the image"),
    ({"bbox": [1, 2, 3]}, "not four numbers"),
    ({"bbox": None}, "not four numbers"),
    ({"category_id": 4}, "unknown category 4"),
    ({"image_id": 8}, "unknown image 8"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_annotation(write, change, message):
    data = coco()
    data["annotations"][0] |= change
    path = write(data)
    with pytest.raises(AnnotationError, match=f"annotation 1: .*{message}"):
        CocoDetection(path)
    dataset = CocoDetection(path, on_error="skip")
    assert dataset.skipped.total() == 1 and len(dataset[0][1]["boxes"]) == 1


def test_only_the_first_broken_are_named(write):
    bad = [{"id": n, "image_id": 7, "category_id": 9, "bbox": [0, 0, 0, 0]} for n in range(1, 21)]
    with pytest.raises(AnnotationError) as caught:
        CocoDetection(write(coco(annotations=bad)))
    text = str(caught.value)
    assert "20 broken" in text and "annotation 5:" in text and "annotation 6:" not in text
    assert "15 more" in text and "\n" not in text


def test_missing_image_file(write):
    data = coco()
    data["images"].append({"id": 8, "file_name": "b.png", "width": 4, "height": 4})
    with pytest.raises(AnnotationError, match=r"image 8: b\.png"):
        CocoDetection(write(data))
    dataset = CocoDetection(write(data), on_error="skip")
    assert len(dataset) == 1 and dataset.skipped["missing file"] == 1


def test_image_of_another_size(write):
    data = coco()
    data["images"][0]["width"] = 50
    with pytest.raises(AnnotationError, match="40 x 30 pixels"):
        CocoDetection(write(data))[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a COCO object"),
        ("{}", "no list 'images'"),
        (coco(images=[{"id": 1}]), "lacks file_name"),
        (coco(annotations=[3]), r"annotations\[0\]"),
    ],
)
def test_not_coco(write, content, message):
    with pytest.raises(AnnotationError, match=message):
        CocoDetection(write(content))


def test_missing_file_and_wrong_choice(write, tmp_path):
    with pytest.raises(AnnotationError, match="cannot read"):
        CocoDetection(tmp_path / "none.json")
    with pytest.raises(ValueError, match="on_error"):
        CocoDetection(write(coco()), on_error="ignore")


def test_data_sets_must_share_categories(write):
    first = write(coco(), "1.json")
    second = write(coco(categories=[{"id": 9, "name": "x"}, {"id": 3, "name": "y"}]), "2.json")
    assert len(load_datasets([str(first), str(first)])) == 2
    with pytest.raises(AnnotationError, match="differ"):
        load_datasets([str(first), str(second)])


def test_shipped_data():
    for name, objects in (("train", 209), ("val", 71), ("val_florida", 61)):
        (dataset,) = load_datasets([f"tree_crowns/{name}.json"])
        image, target = dataset[0]
        assert len(target["boxes"]) == objects and image.shape[0] == 3


def test_pickles(write):
    dataset = CocoDetection(write(coco()))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0][0], dataset[0][0])


def test_load_image_forms(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    expected = torch.from_numpy(array).permute(2, 0, 1)
    Image.fromarray(array).save(tmp_path / "i.png")
    for form in (array, Image.fromarray(array), tmp_path / "i.png", str(tmp_path / "i.png")):
        assert torch.equal(load_image(form), expected)
    assert torch.equal(load_image(expected.float() / 255), expected)
    assert load_image(array[:, :, 0]).shape == (3, 5, 7)
    assert load_image(np.dstack([array, array[:, :, :1]])).shape == (3, 5, 7)


def test_load_image_errors(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
    with pytest.raises(ImageError, match="not a readable image"):
        load_image(tmp_path / "bad.jpg")
    with pytest.raises(ImageError, match="no such image file"):
        load_image(tmp_path / "none.jpg")
    with pytest.raises(ImageError, match=r"\[2, 5, 5\]"):
        load_image(torch.zeros(2, 5, 5))
    with pytest.raises(ImageError, match="int64"):
        load_image(torch.zeros(3, 5, 5, dtype=torch.int64))
    with pytest.raises(ImageError, match="list"):
        load_image([1])


def bright_region(image):
    rows, columns = (image.float().mean(0) > 0.5 * image.float().max()).nonzero().unbind(1)
    edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    return [int(edge) for edge in edges]


def picture_of(box, height=50, width=70):
    x1, y1, x2, y2 = box
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 255
    target = {"boxes": torch.tensor([box], dtype=torch.float32), "labels": torch.tensor([1])}
    return image, target


def settings(**changes):
    values = {
        "CROP_MIN": 20,
        "CROP_MAX": 45,
        "ROTATE90": True,
        "HORIZONTAL_FLIP_PROB_TRAIN": 0.5,
        "VERTICAL_FLIP_PROB_TRAIN": 0.5,
        "BRIGHTNESS": 0.2,
        "CONTRAST": 0.0,
        "SATURATION": 0.2,
        "HUE": 0.05,
    }
    return SimpleNamespace(INPUT=SimpleNamespace(**(values | changes)))


@pytest.mark.parametrize("seed", range(30))
def test_augmentation_keeps_boxes_on_their_objects(seed):
    torch.manual_seed(seed)
    image, target = picture_of([30, 18, 47, 29])
    image, target = TrainTransform(settings())(image, target)
    assert image.dtype == torch.float32 and 0 <= image.min() and image.max() <= 1
    assert type(target["boxes"]) is torch.Tensor and len(target["boxes"]) == len(target["labels"])
    if len(target["boxes"]):
        assert target["boxes"][0].tolist() == bright_region(image)


def test_augmentation_of_images_without_boxes():
    image = torch.zeros(3, 10, 12, dtype=torch.uint8)
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    image, target = TrainTransform(settings())(image, target)
    assert target["boxes"].shape == (0, 4) and image.shape[0] == 3


def test_whole_image_without_cropping():
    image, target = picture_of([3, 4, 9, 8])
    out, _ = TrainTransform(settings(CROP_MAX=0, ROTATE90=False))(image, target)
    assert out.shape == image.shape


@pytest.mark.parametrize(("visible", "kept"), [(0.49, 1), (0.51, 0)])
def test_share_that_must_stay_visible(visible, kept):
    _, target = picture_of([10, 10, 20, 20])
    result = crop_boxes(target, (15, 0, 40, 40), visible)
    assert len(result["boxes"]) == len(result["labels"]) == kept
    if kept:
        assert result["boxes"].tolist() == [[0, 10, 5, 20]]


def test_crop_sides():
    torch.manual_seed(0)
    image, target = picture_of([10, 10, 20, 20])
    crop = RandomSquareCrop(12, 16)
    sides = {tuple(crop(image, target)[0].shape[1:]) for _ in range(100)}
    assert sides == {(s, s) for s in range(12, 17)}
    assert RandomSquareCrop(60, 60)(image, target)[0].shape == (3, 50, 60)
    with pytest.raises(ValueError, match="max_side 5"):
        RandomSquareCrop(6, 5)


def test_four_quarter_turns():
    image, target = picture_of([10, 12, 20, 30])
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        turned, moved = RandomRotate90()(image, target)
        assert moved["boxes"][0].tolist() == bright_region(turned)
        seen.add(tuple(moved["boxes"][0].tolist()))
    assert len(seen) == 4


class Noise(torch.utils.data.Dataset):
    """Items that are random numbers, as augmentation makes them."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.rand(3) + index, {"labels": torch.tensor([index])}


def drawn(**options):
    loader = build_train_loader(Noise(), 2, 6, **options)
    return [torch.stack(images) for images, _ in loader]


def test_batches_depend_on_seed_and_position_only():
    whole = drawn(seed=1)
    assert len(whole) == 6
    assert all(map(torch.equal, whole, drawn(seed=1)))
    assert all(map(torch.equal, whole[4:], drawn(seed=1, start=4)))
    assert all(map(torch.equal, whole, drawn(seed=1, workers=1)))
    assert not all(map(torch.equal, whole, drawn(seed=2)))


def test_loading_leaves_random_numbers_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    drawn()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


class AllNoise(Noise):
    """Random numbers from wherever augmentation may take them."""

    def __getitem__(self, index):
        numbers = [random.random(), np.random.rand(), float(torch.rand(()))]
        return torch.tensor(numbers), {"labels": torch.tensor([index])}


@pytest.mark.parametrize("workers", [0, 2])
def test_every_generator_is_seeded_for_each_image(workers):
    loader = build_train_loader(AllNoise(), 5, 2, seed=3, workers=workers)
    again = build_train_loader(AllNoise(), 5, 2, seed=3)
    first, second = ([torch.stack(images) for images, _ in each] for each in (loader, again))
    assert all(map(torch.equal, first, second))
    values = torch.cat(first)
    assert len(values.unique()) == values.numel()


def sampled(**options):
    """Indices of each batch."""
    defaults = {"size": 7, "batch_size": 4, "start": 0, "stop": 12}
    sampler = SeededBatchSampler(**(defaults | options))
    return [[index for index, _ in batch] for batch in sampler]


def test_every_image_once_in_an_epoch():
    order = [index for batch in sampled() for index in batch]
    epochs = [order[i : i + 7] for i in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


GROUPS = [0, 1, 1, 0, 1, 1, 1]


def test_batches_of_one_group():
    batches = sampled(groups=GROUPS, stop=70)
    assert len(batches) == 70
    assert all(len({GROUPS[index] for index in batch}) == 1 for batch in batches)
    counts = torch.bincount(torch.tensor(batches).flatten(), minlength=7)
    # 40 epochs, less what still waits for its batch to fill.
    assert counts.min() >= 38 and counts.max() <= 42


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("start", [1, 5, 12, 13])
def test_sampler_goes_on_anywhere(groups, start):
    def pairs(**options):
        return list(SeededBatchSampler(7, 4, stop=12, seed=5, groups=groups, **options))

    assert pairs(start=start) == pairs(start=0)[start:]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shares_make_up_the_pieces_of_the_batch(parts):
    def pairs(**options):
        return list(SeededBatchSampler(7, 12, 0, 5, seed=1, groups=GROUPS, parts=parts, **options))

    size = 12 // parts
    for whole, one, other in zip(pairs(), *(pairs(share=(i, 2)) for i in (0, 1)), strict=True):
        for part in range(parts):
            mine = [each[part * size // 2 : (part + 1) * size // 2] for each in (one, other)]
            assert mine[0] + mine[1] == whole[part * size : (part + 1) * size]
    seeds = [seed for batch in pairs() for _, seed in batch]
    assert len(set(seeds)) == len(seeds)


def test_batch_that_cannot_be_shared():
    with pytest.raises(ValueError, match=r"IMS_PER_BATCH: .*processes \(2\).*ACCUMULATE \(2\)"):
        sampled(batch_size=6, share=(0, 2), parts=2)


def test_orientations(write):
    data = coco(annotations=[])
    data["images"].append({"id": 8, "file_name": "a.png", "width": 30, "height": 30})
    lying = CocoDetection(write(data))
    assert orientations(lying) == [1, 0]
    assert orientations(torch.utils.data.ConcatDataset([lying, lying])) == [1, 0, 1, 0]
    assert orientations(torch.utils.data.ConcatDataset([lying, Noise()])) is None


def test_empty_data_set():
    with pytest.raises(ValueError, match="empty"):
        build_train_loader([], 1, 1)
