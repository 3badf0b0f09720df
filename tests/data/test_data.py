# SPDX-License-Identifier: MIT
"""COCO datasets, image loading and the training loader."""

import json
import pickle
import random

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


def test_coco_item_has_image_boxes_labels_and_id(write):
    dataset = CocoDetection(write(coco()))
    image, target = dataset[0]
    assert image.shape == (3, 30, 40) and image.dtype == torch.uint8
    assert image[:, 0, 0].tolist() == [200, 100, 50]
    assert dataset.names == ("dog", "cat") and dataset.category_ids == (3, 9)
    assert target["labels"].tolist() == [2, 1]
    assert target["boxes"].tolist() == [[1, 2, 11, 7], [0, 0, 40, 30]]
    assert target["image_id"] == 7


def test_image_without_annotations_has_empty_targets(write):
    _, target = CocoDetection(write(coco(annotations=[])))[0]
    assert target["boxes"].shape == (0, 4) and target["labels"].shape == (0,)


def test_crowds_are_excluded_from_targets_but_evaluated(write):
    data = coco()
    data["annotations"][0]["iscrowd"] = 1
    dataset = CocoDetection(write(data))
    assert len(dataset[0][1]["boxes"]) == 1
    assert len(dataset.ground_truth()["annotations"]) == 2


BROKEN = [
    ({"bbox": [1, 1, 0, 4]}, "zero area"),
    ({"bbox": [1, 1, float("nan"), 4]}, "not four finite numbers"),
    ({"bbox": [1, 1, float("inf"), 4]}, "not four finite numbers"),
    ({"bbox": [1, 1, 10**400, 4]}, "not four finite numbers"),
    ({"bbox": [1, 1, True, 4]}, "not four finite numbers"),
    ({"bbox": "1234"}, "not four finite numbers"),
    ({"bbox": [1, 1, -3, 4]}, "negative width or height"),
    ({"bbox": [1, 2, 3]}, "not four finite numbers"),
    ({"bbox": None}, "not four finite numbers"),
    ({"category_id": 4}, "unknown category: 4"),
    ({"image_id": 8}, "unknown image: 8"),
    ({"image_id": [7]}, r"unknown image: \[7\]"),
    ({"category_id": {}}, "unknown category: {}"),
    ({"category_id": None}, "unknown category: None"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_broken_annotation_is_reported_or_skipped(write, change, message):
    data = coco()
    data["annotations"][0] |= change
    path = write(data)
    with pytest.raises(AnnotationError, match=rf"data\.json: 1 broken .*annotation 1: .*{message}"):
        CocoDetection(path)
    dataset = CocoDetection(path, on_error="skip")
    assert dataset.skipped.total() == 1 and len(dataset[0][1]["boxes"]) == 1


def test_error_names_only_the_first_five_broken_annotations(write):
    broken = [
        {"id": n, "image_id": 7, "category_id": 9, "bbox": [0, 0, 0, 0]} for n in range(1, 21)
    ]
    with pytest.raises(AnnotationError) as caught:
        CocoDetection(write(coco(annotations=broken)))
    text = str(caught.value)
    assert "20 broken" in text and "annotation 5:" in text and "annotation 6:" not in text
    assert "15 more" in text and "\n" not in text


def test_missing_image_file_is_reported_or_skipped(write):
    data = coco()
    data["images"].append({"id": 8, "file_name": "b.png", "width": 4, "height": 4})
    with pytest.raises(AnnotationError, match=r"image 8: missing file: .*b\.png"):
        CocoDetection(write(data))
    dataset = CocoDetection(write(data), on_error="skip")
    assert len(dataset) == 1 and dataset.skipped["missing file"] == 1


def write_noise_image(path, size=(40, 30), **options):
    """Writes a noise image, large enough that half of its file is a broken image."""
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


def broken_files(folder):
    """Writes two valid images and one broken file of each kind; returns their records."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    write_noise_image(folder / "sound.jpg")
    write_noise_image(folder / "turned.jpg", (30, 40), exif=rotated)
    write_noise_image(folder / "other.png", (41, 30))
    for name in ("cut.jpg", "cut.png", "cut.gif"):
        write_noise_image(folder / name)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    (folder / "text.png").write_text("no image")
    (folder / "folder.png").mkdir()
    names = ["sound.jpg", "turned.jpg", "other.png", "cut.jpg", "cut.png", "cut.gif", "text.png"]
    names += ["folder.png", "x" * 300, "nul\0"]
    return [
        {"id": id, "file_name": name, "width": 40, "height": 30} for id, name in enumerate(names)
    ]


def test_broken_image_files_are_found_when_the_dataset_opens(write, tmp_path):
    path = write(coco(images=broken_files(tmp_path), annotations=[]))
    with pytest.raises(AnnotationError, match=r"8 broken .*image 2: wrong image size: .*41 x 30"):
        CocoDetection(path)
    for check in ("header", "decode"):
        dataset = CocoDetection(path, on_error="skip", check=check)
        assert [image["id"] for image in dataset.images] == [0, 1]
        assert dataset.skipped["unreadable image"] == 5  # includes the file name that is too long
        assert dataset.skipped["missing file"] == dataset.skipped["not a regular file"] == 1
        assert dataset[0][0].shape == dataset[1][0].shape == (3, 30, 40)
    assert len(CocoDetection(path, on_error="skip", check="exists")) == 7


@pytest.mark.filterwarnings("ignore:.*the next image replaces it")
def test_unreadable_image_is_replaced_by_the_next_one(write, tmp_path):
    path = write(coco(images=broken_files(tmp_path), annotations=[]))
    dataset = CocoDetection(path, on_error="skip", check="exists")
    for index in range(2, 7):
        with pytest.warns(UserWarning, match=dataset.images[index]["file_name"]):
            image, target = dataset[index]
        assert image.shape == (3, 30, 40) and target["image_id"] == 0
    write_noise_image(tmp_path / "late.jpg")
    dataset = CocoDetection(write(coco(images=[image_record("late.jpg")])))
    skipping = CocoDetection(dataset.path, on_error="skip")
    (tmp_path / "late.jpg").unlink()
    with pytest.raises(AnnotationError, match=r"late\.jpg: no such image file"):
        dataset[0]
    with pytest.warns(UserWarning), pytest.raises(AnnotationError, match="none of its 1 images"):
        skipping[0]


def image_record(name, **changes):
    return {"id": 7, "file_name": name, "width": 40, "height": 30} | changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": -1}, "size is not two positive whole numbers"),
        ({"height": "30"}, "size is not two positive whole numbers"),
        ({"height": True}, "size is not two positive whole numbers"),
        ({"file_name": 3}, "file name is not text"),
        ({"id": 6}, "duplicate image id"),
    ],
)
def test_broken_image_record_is_reported_or_skipped(write, change, message):
    images = [image_record("a.png", id=6), image_record("a.png") | change]
    path = write(coco(images=images, annotations=[]))
    with pytest.raises(AnnotationError, match=f"image [67]: {message}"):
        CocoDetection(path)
    assert len(CocoDetection(path, on_error="skip")) == 1


def test_annotations_of_broken_images_are_skipped_too(write):
    data = coco()
    data["images"].append(image_record("none.png", id=8))
    data["annotations"].append({"id": 3, "image_id": 8, "category_id": 9, "bbox": [0, 0, 2, 2]})
    dataset = CocoDetection(write(data), on_error="skip")
    assert dataset.skipped == {"missing file": 1}
    assert len(dataset.ground_truth()["annotations"]) == 2


def test_missing_areas_are_computed_from_the_boxes(write):
    data = coco()
    data["annotations"][0]["area"] = None
    data["annotations"][1]["area"] = 7
    areas = [a["area"] for a in CocoDetection(write(data)).ground_truth()["annotations"]]
    assert areas == [50, 7]


def test_index_beyond_the_end_raises(write):
    dataset = CocoDetection(write(coco()))
    assert dataset[-1][1]["image_id"] == 7
    with pytest.raises(IndexError):
        dataset[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a COCO object"),
        ("{}", "no list 'images'"),
        (coco(images=[{"id": 1}]), "lacks file_name"),
        (coco(annotations=[3]), r"annotations\[0\]"),
        (coco(images=[{"id": [1], "file_name": "a", "width": 1, "height": 1}]), r"id is \[1\]"),
        (coco(categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]), "not all different"),
        (coco(categories=[{"id": 1, "name": "a"}, {"id": "x", "name": "b"}]), "several types"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_invalid_coco_file_raises(write, content, message):
    with pytest.raises(AnnotationError, match=message):
        CocoDetection(write(content))


def test_missing_annotation_file_and_unknown_option_raise(write, tmp_path):
    with pytest.raises(AnnotationError, match="cannot read"):
        CocoDetection(tmp_path / "none.json")
    with pytest.raises(ValueError, match="on_error"):
        CocoDetection(write(coco()), on_error="ignore")
    with pytest.raises(ValueError, match="check: expected 'exists'"):
        CocoDetection(write(coco()), check="all")


def test_datasets_must_share_categories(write):
    first = write(coco(), "1.json")
    second = write(coco(categories=[{"id": 9, "name": "x"}, {"id": 3, "name": "y"}]), "2.json")
    assert len(load_datasets([str(first), str(first)])) == 2
    with pytest.raises(AnnotationError, match="differ"):
        load_datasets([str(first), str(second)])


def test_shipped_datasets_open_with_all_their_objects():
    for name, objects in (("train", 209), ("val", 71), ("val_florida", 61)):
        (dataset,) = load_datasets([f"tree_crowns/{name}.json"])
        image, target = dataset[0]
        assert len(target["boxes"]) == objects and image.shape[0] == 3


def test_dataset_survives_pickling(write):
    dataset = CocoDetection(write(coco()))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0][0], dataset[0][0])


def test_load_image_accepts_arrays_images_paths_and_tensors(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    expected = torch.from_numpy(array).permute(2, 0, 1)
    Image.fromarray(array).save(tmp_path / "i.png")
    for source in (array, Image.fromarray(array), tmp_path / "i.png", str(tmp_path / "i.png")):
        assert torch.equal(load_image(source), expected)
    assert torch.equal(load_image(expected.float() / 255), expected)
    assert load_image(array[:, :, 0]).shape == (3, 5, 7)
    assert load_image(np.dstack([array, array[:, :, :1]])).shape == (3, 5, 7)


def test_load_image_rejects_invalid_input(tmp_path):
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


class Noise(torch.utils.data.Dataset):
    """Items of random numbers, as from augmentation."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.rand(3) + index, {"labels": torch.tensor([index])}


def draw_batches(**options):
    loader = build_train_loader(Noise(), 2, 6, **options)
    return [torch.stack(images) for images, _ in loader]


def test_batches_depend_on_seed_and_position_only():
    batches = draw_batches(seed=1)
    assert len(batches) == 6
    assert all(map(torch.equal, batches, draw_batches(seed=1)))
    assert all(map(torch.equal, batches[4:], draw_batches(seed=1, start=4)))
    assert all(map(torch.equal, batches, draw_batches(seed=1, workers=1)))
    assert not all(map(torch.equal, batches, draw_batches(seed=2)))


def test_loading_leaves_global_random_state_unchanged():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    draw_batches()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


class NoiseFromAllGenerators(Noise):
    """Items of random numbers from all generators that augmentation may use."""

    def __getitem__(self, index):
        numbers = [random.random(), np.random.rand(), float(torch.rand(()))]
        return torch.tensor(numbers), {"labels": torch.tensor([index])}


@pytest.mark.parametrize("workers", [0, 2])
def test_every_generator_is_seeded_for_each_image(workers):
    loader = build_train_loader(NoiseFromAllGenerators(), 5, 2, seed=3, workers=workers)
    same_seed = build_train_loader(NoiseFromAllGenerators(), 5, 2, seed=3)
    first, second = ([torch.stack(images) for images, _ in each] for each in (loader, same_seed))
    assert all(map(torch.equal, first, second))
    values = torch.cat(first)
    assert len(values.unique()) == values.numel()


def sample_batches(**options):
    """Returns the image indices of each batch."""
    defaults = {"size": 7, "batch_size": 4, "start": 0, "stop": 12}
    sampler = SeededBatchSampler(**(defaults | options))
    return [[index for index, _ in batch] for batch in sampler]


def test_an_epoch_contains_every_image_once():
    order = [index for batch in sample_batches() for index in batch]
    epochs = [order[i : i + 7] for i in range(0, 42, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


GROUPS = [0, 1, 1, 0, 1, 1, 1]


def test_each_batch_contains_images_of_one_group():
    batches = sample_batches(groups=GROUPS, stop=70)
    assert len(batches) == 70
    assert all(len({GROUPS[index] for index in batch}) == 1 for batch in batches)
    counts = torch.bincount(torch.tensor(batches).flatten(), minlength=7)
    # 40 epochs, minus the images in batches that are not full yet.
    assert counts.min() >= 38 and counts.max() <= 42


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("start", [1, 5, 12, 13])
def test_sampler_resumes_at_any_step(groups, start):
    def pairs(**options):
        return list(SeededBatchSampler(7, 4, stop=12, seed=5, groups=groups, **options))

    assert pairs(start=start) == pairs(start=0)[start:]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_process_batches_make_up_each_part_of_the_batch(parts):
    def pairs(**options):
        return list(SeededBatchSampler(7, 12, 0, 5, seed=1, groups=GROUPS, parts=parts, **options))

    size = 12 // parts
    for full_batch, one, other in zip(pairs(), *(pairs(share=(i, 2)) for i in (0, 1)), strict=True):
        for part in range(parts):
            process_parts = [
                each[part * size // 2 : (part + 1) * size // 2] for each in (one, other)
            ]
            assert (
                process_parts[0] + process_parts[1] == full_batch[part * size : (part + 1) * size]
            )
    seeds = [seed for batch in pairs() for _, seed in batch]
    assert len(set(seeds)) == len(seeds)


def test_batch_size_must_divide_by_processes_and_accumulation():
    with pytest.raises(ValueError, match=r"IMS_PER_BATCH: .*processes \(2\).*ACCUMULATE \(2\)"):
        sample_batches(batch_size=6, share=(0, 2), parts=2)


def test_orientations_mark_landscape_images(write):
    data = coco(annotations=[])
    data["images"].append({"id": 8, "file_name": "a.png", "width": 30, "height": 30})
    dataset = CocoDetection(write(data), check="exists")
    assert orientations(dataset) == [1, 0]
    assert orientations(torch.utils.data.ConcatDataset([dataset, dataset])) == [1, 0, 1, 0]
    assert orientations(torch.utils.data.ConcatDataset([dataset, Noise()])) is None


def test_empty_dataset_raises():
    with pytest.raises(ValueError, match="empty"):
        build_train_loader([], 1, 1)
