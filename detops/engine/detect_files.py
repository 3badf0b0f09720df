# SPDX-License-Identifier: MIT
"""The command `detops detect`: image files in, pictures and a JSON file out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from ..data import ImageError, load_image
from ..ops import masks_to_rle
from ..visualize import draw_detections
from .checkpoint import list_some
from .command import write_json
from .detect import Detector
from .progress import counting_progress


def detect_files(
    make_detector: Callable[[], Detector],
    images: Sequence[Path],
    output: Path,
    json_file: Path | None,
    score_threshold: float,
    console: Console,
    messages: Console,
    complain: Callable[[str], Any],
    batch: int = 1,
) -> tuple[int, Exception | None]:
    """Detects in image files, draws what is found, and writes it down.

    An image that fails does not end the run: it is told of, and the others are worked on. What was
    found is written to the JSON file however the run ends.

    Args:
        make_detector: called once it is known that results can be written.
        images: the files.
        output: folder for the pictures, made if missing.
        json_file: for boxes, names, scores, and masks and keypoints if there are any.
        score_threshold: detections below it are left out.
        console: for a line for each image.
        messages: for what is looked for, and progress.
        complain: called with what is wrong with an image.
        batch: how many images are read at a time; those of one size are detected in together.

    Returns:
        How many images failed, and the error of the last that did.

    Raises:
        OSError: a result cannot be written.
    """
    with _writing(output):
        output.mkdir(parents=True, exist_ok=True)
    if json_file is not None and json_file.is_dir():
        raise IsADirectoryError(f"{json_file}: cannot write (it is a folder)")
    detector = make_detector()
    messages.print(f"looking for {list_some(detector.names, ', ')}")
    entries: list[dict[str, Any]] = []
    # Not all errors: each keeps the image that it came from.
    failed = 0
    last_error: Exception | None = None

    def attempt(path: Path, action: Callable[..., Any], *args: Any) -> Any:
        nonlocal failed, last_error
        try:
            return action(*args)
        # RuntimeError is what PyTorch raises where memory does not suffice.
        except (ImageError, MemoryError, RuntimeError) as error:
            failed, last_error = failed + 1, error
            text = str(error) or "not enough memory"
            complain(text if isinstance(error, ImageError) else f"{path}: {text}")

    files = list(zip(images, picture_paths(images, output), strict=True))
    try:
        with counting_progress(messages, "detecting") as report:
            for start in range(0, len(files), batch):
                group = [
                    (path, picture_path, pixels)
                    for path, picture_path in files[start : start + batch]
                    if (pixels := attempt(path, load_image, path)) is not None
                ]
                together = _together(detector, [pixels for *_, pixels in group], score_threshold)
                for (path, picture_path, pixels), found in zip(group, together, strict=True):
                    if found is None:
                        found = attempt(path, detector.detect, pixels, score_threshold)
                    if found is None:
                        continue
                    picture = attempt(path, draw_found, pixels, found, len(detector.names) > 1)
                    if picture is None:
                        continue
                    with _writing(picture_path):
                        picture.save(picture_path)
                    entries.append(image_entry(path, picture_path, pixels.shape, found))
                    report(len(entries) + failed, len(images))
                    console.print(f"{path}: {len(found['scores'])} found, {picture_path}")
    finally:
        if json_file is not None:
            with _writing(json_file):
                write_json(json_file, entries)
    return failed, last_error


def _together(
    detector: Detector, pixels: Sequence[Tensor], score_threshold: float
) -> Sequence[dict[str, Any] | None]:
    """What is in several images; None for those that are to be taken one by one."""
    if len(pixels) > 1:
        with suppress(MemoryError, RuntimeError):  # for one of them, or for all at a time
            return detector.detect_batch(pixels, score_threshold)
    return [None] * len(pixels)


def picture_paths(images: Sequence[Path], output: Path) -> list[Path]:
    """A file for each image's picture: none twice, and none that is an image itself."""

    def key(path: Path) -> str:
        # On some file systems capitals are no difference.
        return os.path.realpath(path).casefold()

    taken = {key(path) for path in images}
    last: Counter[str] = Counter()
    paths = []
    for image in images:
        path = output / f"{image.stem}.png"
        while key(path) in taken:
            last[image.stem] += 1
            path = output / f"{image.stem}_{last[image.stem] + 1}.png"
        taken.add(key(path))
        paths.append(path)
    return paths


def draw_found(pixels: Any, found: dict[str, Any], with_names: bool) -> Any:
    """The picture of what `Detector.detect` found."""
    return draw_detections(
        pixels,
        found["boxes"],
        found["scores"],
        found["labels"],
        found["names"] if with_names else None,
        masks=found.get("masks"),
        keypoints=found.get("keypoints"),
    )


def image_entry(
    path: Path, picture: Path, shape: Sequence[int], found: dict[str, Any]
) -> dict[str, Any]:
    """What the JSON file has of an image.

    Each detection has box (x1, y1, x2, y2), name and score, and where there are any mask
    (compressed run lengths), keypoints (COCO's x, y, visibility of each) and keypoint_scores
    (logits).
    """
    columns = {"box": found["boxes"].tolist(), "name": found["names"]}
    columns["score"] = found["scores"].tolist()
    if "masks" in found:
        columns["mask"] = masks_to_rle(found["masks"][:, 0])
    if "keypoints" in found:
        columns["keypoints"] = found["keypoints"].flatten(1).tolist()
    if "keypoints_scores" in found:
        columns["keypoint_scores"] = found["keypoints_scores"].tolist()
    rows = zip(*columns.values(), strict=True)
    return {
        "image": str(path),
        "picture": str(picture),
        "width": shape[2],
        "height": shape[1],
        "detections": [dict(zip(columns, row, strict=True)) for row in rows],
    }


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Names the file that cannot be written: not every error does."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: cannot write ({error.strerror or error})") from error
