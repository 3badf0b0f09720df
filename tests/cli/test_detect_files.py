# SPDX-License-Identifier: MIT
"""`detops detect` on many files, some of them broken, and its output."""

import json
import re

import detect_command
import numpy as np
import pytest
import torch
from detect_command import HEIGHT, POINTS, WIDTH, OneObject
from PIL import Image
from rich.console import Console

from detops.data.masks import decode_masks
from detops.engine import Detector, command
from detops.engine.detect_files import drawing_paths
from detops.engine.sources import Source
from detops.visualize import PERSON_SKELETON, class_colour, draw_detections

detect, picture = detect_command.detect, detect_command.image_file  # fixtures


def test_run_continues_after_broken_files(detect, picture, tmp_path):
    good, last, cut = picture("good.png"), picture("last.png"), picture("cut.jpg")
    cut.write_bytes(cut.read_bytes()[:200])
    missing, large = tmp_path / "none.jpg", picture("large.png", (4, 1001))
    found = tmp_path / "o.json"
    status, lines, errors = detect(good, cut, missing, large, last, "--json", found)
    assert status == 1
    assert [line.partition(": ")[0] for line in lines] == [str(good), str(last)]
    assert errors[0] == "detecting cat, dog"
    assert re.fullmatch(r"2 images in .* ms reading, .* ms detecting, .* ms writing", errors[4])
    assert errors[5] == "found: 2 cat"
    for error, path, problem in zip(
        errors[1:4],
        (cut, missing, large),
        ("not a readable image", "no such image file", "not enough memory"),
        strict=True,
    ):
        assert error.startswith(f"detops: error: {path}: ") and problem in error
    assert errors[6:] == ["detops: error: 3 of 5 images failed"]
    assert [entry["image"] for entry in json.loads(found.read_text())] == [str(good), str(last)]
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("good.png", "last.png"),
        *("detections.jsonl", "run.json"),
    }


def test_consoles_are_quiet_only_during_the_run(monkeypatch):
    monkeypatch.setattr(command, "is_main", lambda: False)
    consoles = Console(), Console()
    with pytest.raises(KeyError), command.process_group("cpu", *consoles):
        assert all(console.quiet for console in consoles)
        raise KeyError
    assert not any(console.quiet for console in consoles)


def without_times(lines):
    return [re.sub(r"[\d.]+ (ms|s|images/s)\b", r"\1", line) for line in lines]


@pytest.mark.parametrize("batch", [2, 4, 100])
def test_images_of_one_size_are_batched_together(detect, picture, tmp_path, monkeypatch, batch):
    files = [picture(f"{i}.png", size) for i, size in enumerate([(40, 30), (30, 20)] * 3)]
    files.insert(2, tmp_path / "missing.png")
    files.insert(4, picture("large.png", (4, 1001)))
    unbatched, batched = tmp_path / "alone.json", tmp_path / "together.json"
    _, expected, problems = detect(*files, "--json", unbatched)
    sizes, forward = [], OneObject.forward
    monkeypatch.setattr(
        OneObject,
        "forward",
        lambda self, images: sizes.append(len(images)) or forward(self, images),
    )
    status, lines, errors = detect(*files, "--json", batched, "--batch", batch)
    assert status == 1 and without_times(lines) == without_times(expected)
    assert sorted(without_times(errors)) == sorted(without_times(problems))
    assert batched.read_text() == unbatched.read_text()
    assert max(sizes) == {2: 1, 4: 2, 100: 3}[batch]


def test_json_is_written_even_if_the_last_files_fail(detect, picture, tmp_path):
    good, found = picture("good.png"), tmp_path / "o.json"
    assert detect(good, tmp_path / "a", tmp_path / "b", "--json", found)[0] == 1
    assert len(json.loads(found.read_text())) == 1
    assert detect(tmp_path / "a", "--json", found)[0] == 1
    assert json.loads(found.read_text()) == []


def test_debug_shows_why_an_image_failed(detect, picture):
    _, _, errors = detect(picture("large.png", (4, 1001)), "--debug")
    assert any("Traceback" in line for line in errors)
    assert any("in detections" in line for line in errors)


def test_json_is_written_when_a_run_is_interrupted(detect, picture, tmp_path, monkeypatch):
    images, found = [picture(f"{i}.png") for i in range(3)], tmp_path / "o.json"
    original = Detector.detect

    def interrupted_detect(self, pixels, threshold):
        if (tmp_path / "out" / "1.png").exists():
            raise KeyboardInterrupt
        return original(self, pixels, threshold)

    monkeypatch.setattr(Detector, "detect", interrupted_detect)
    assert detect(*images, "--json", found)[0] == 130
    assert len(json.loads(found.read_text())) == 2


def test_unwritable_output_is_reported(detect, picture, tmp_path):
    good, found = picture("good.png"), tmp_path / "o.json"
    for arguments, output, problem in (
        (["--json", "/dev/full"], "/dev/full", "No space left on device"),
        (["--json", tmp_path], tmp_path, "expected a file, got a folder"),
        (["--json", good / "o.json"], good / "o.json", ""),
        (["--output", good], good, "expected a folder, got a file"),
        (["--output", good / "out"], good / "out", "Not a directory"),
    ):
        status, _, errors = detect(good, *arguments)
        assert status == 2
        assert errors[-1].startswith(f"detops: error: {output}: "), errors
        assert problem in errors[-1] and sum("error" in line for line in errors) == 1
    (tmp_path / "out" / "full.png").symlink_to("/dev/full")
    status, _, errors = detect(good, picture("full.png"), good, "--json", found)
    assert status == 2
    assert f"{tmp_path}/out/full.png: cannot be written: No space left" in errors[-1]
    assert len(json.loads(found.read_text())) == 1


def test_images_with_the_same_name_get_separate_outputs(detect, picture, tmp_path):
    names = ["x_2.png", "a/x.png", "b/x.png", "b/x.jpg", "c/X.png", "out/y.png"]
    images = [picture(name) for name in names]
    before = images[-1].read_bytes()
    found = tmp_path / "o.json"
    assert detect(*images, "--json", found)[0] == 0
    outputs = [entry["picture"] for entry in json.loads(found.read_text())]
    # Names are distinct even without case, and input images are never overwritten.
    expected = ["x_2", "x", "x_3", "x_4", "X_5", "y_2"]
    assert outputs == [str(tmp_path / "out" / f"{name}.png") for name in expected]
    assert all(Image.open(name).size == (2 * WIDTH, 2 * HEIGHT) for name in outputs)
    assert images[-1].read_bytes() == before


def test_thousands_of_equal_names_get_distinct_paths(tmp_path):
    images = [tmp_path / str(i) / "frame.jpg" for i in range(3000)]
    paths = drawing_paths([Source(str(image)) for image in images], tmp_path / "out", {})
    assert len(set(paths)) == 3000 and paths[-1].name == "frame_3000.png"


def test_json_entry_has_box_mask_and_keypoints(detect, picture, tmp_path):
    found = tmp_path / "o.json"
    image = picture("a.png")
    assert detect(image, "--json", found)[0] == 0
    (entry,) = json.loads(found.read_text())
    (detection,) = entry.pop("detections")
    assert entry == {
        "image": str(image),
        "picture": str(tmp_path / "out" / "a.png"),
        "width": WIDTH,
        "height": HEIGHT,
    }
    assert detection["box"] == [2, 3, 12, 9] and detection["name"] == "cat"
    assert detection["score"] == 0.75 and detection["label"] == 1
    expected = torch.zeros(1, HEIGHT, WIDTH, dtype=torch.bool)
    expected[:, 3:9, 2:12] = True
    assert torch.equal(decode_masks([detection["mask"]], HEIGHT, WIDTH) > 0, expected)
    assert detection["keypoints"] == POINTS.flatten().tolist()
    assert detection["keypoint_scores"] == list(range(17))


def test_box_detector_writes_only_boxes(detect, picture, tmp_path, monkeypatch):
    detector = Detector(OneObject(()), ["cat"], device="cpu")
    monkeypatch.setattr(Detector, "from_checkpoint", lambda *_: detector)
    found = tmp_path / "o.json"
    assert detect(picture("a.png"), "--json", found)[0] == 0
    (entry,) = json.loads(found.read_text())
    assert entry["detections"][0].keys() == {"box", "name", "label", "score"}


def draw_and_probe(**options):
    image = torch.zeros(3, 300, 300, dtype=torch.uint8)
    boxes = torch.tensor([[10.0, 10, 290, 290]])
    drawing = draw_detections(image, boxes, **options)
    pixels = torch.from_numpy(np.array(drawing)).sum(2)  # twice as large as the image
    return lambda x, y: bool((pixels[2 * y - 2 : 2 * y + 3, 2 * x - 2 : 2 * x + 3] > 150).any())


def test_person_keypoints_are_drawn_with_their_skeleton():
    # On a circle, only its own line passes through the midpoint of two neighbours.
    angles = torch.arange(17) * 2 * torch.pi / 17
    points = torch.stack([150 + 110 * angles.cos(), 150 + 110 * angles.sin(), torch.ones(17)], 1)[
        None
    ]
    is_drawn, is_drawn_without = draw_and_probe(keypoints=points), draw_and_probe()
    assert all(is_drawn(round(x), round(y)) for x, y, _ in points[0].tolist())
    assert not any(is_drawn_without(round(x), round(y)) for x, y, _ in points[0].tolist())

    def midpoint(first, second):
        x, y = (points[0, first, :2] + points[0, second, :2]).div(2).tolist()
        return round(x), round(y)

    assert all(is_drawn(*midpoint(first, second)) for first, second in PERSON_SKELETON)
    assert not is_drawn(*midpoint(9, 10)) and not is_drawn(*midpoint(16, 0))
    points[0, 2, 2] = 0
    is_drawn_if_hidden = draw_and_probe(keypoints=points)
    assert not is_drawn_if_hidden(*map(round, points[0, 2, :2].tolist()))
    assert not is_drawn_if_hidden(*midpoint(1, 2)) and is_drawn_if_hidden(*midpoint(0, 1))


def test_other_keypoints_are_joined_by_the_given_skeleton():
    points = torch.tensor([[[40.0, 40, 1], [240, 40, 2], [40, 240, 1]]])
    is_drawn = draw_and_probe(keypoints=points)
    assert is_drawn(40, 40) and is_drawn(240, 40) and not is_drawn(140, 40)
    is_connected = draw_and_probe(keypoints=points, skeleton=[(0, 1)])
    assert is_connected(140, 40) and not is_connected(40, 140)
    assert not draw_and_probe(keypoints=torch.zeros(1, 0, 3))(40, 40)


def test_invalid_keypoints_raise():
    with pytest.raises(ValueError, match=r"keypoints of shape \[1, k, 3\], got \[2, 17, 3\]"):
        draw_and_probe(keypoints=torch.zeros(2, 17, 3))
    with pytest.raises(ValueError, match="finite keypoints"):
        draw_and_probe(keypoints=torch.full((1, 17, 3), torch.nan))


def test_line_width_is_applied():
    def width(**options):
        image, boxes = (
            torch.zeros(3, 100, 100, dtype=torch.uint8),
            torch.tensor([[20.0, 20, 80, 80]]),
        )
        drawing = draw_detections(image, boxes, enlarge=False, **options)
        assert drawing.size == (100, 100)
        return sum(sum(drawing.getpixel((x, 50))) > 100 for x in range(10, 40))

    assert [width(line_width=pixels) for pixels in (1, 4, 10)] == [1, 4, 10]
    assert 1 < width() < 4


def test_tags_can_be_disabled():
    scores, names = torch.tensor([0.5]), ["cat"]
    with_tags, without_tags, box_only = (
        draw_pixels(scores=scores, names=names, tags=True),
        draw_pixels(scores=scores, names=names, tags=False),
        draw_pixels(),
    )
    assert not torch.equal(with_tags, box_only) and torch.equal(without_tags, box_only)


def draw_pixels(**options):
    image, boxes = torch.zeros(3, 100, 100, dtype=torch.uint8), torch.tensor([[20.0, 40, 80, 80]])
    return torch.from_numpy(np.array(draw_detections(image, boxes, **options)))


def test_every_class_has_a_distinct_colour():
    colours = [class_colour(label) for label in range(1, 1001)]
    assert len(set(colours)) == 1000
    assert all(max(colour) >= 180 for colour in colours)  # visible on dark images
