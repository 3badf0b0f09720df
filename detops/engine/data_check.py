# SPDX-License-Identifier: MIT
"""The command `detops data check`: problems and contents of datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ..data import DetectionDataset, open_dataset
from ..data.catalog import different_categories, rename_all
from ..data.class_map import ClassMap
from ..data.duplicate_images import find_duplicate_images, load_imagehash
from ..data.problems import shown
from ..visualize import contact_sheet
from .anchor_fit import AnchorFit, anchor_generator, fit_anchors
from .checkpoint import writing
from .plots import (
    MATPLOTLIB_MISSING,
    SHEET_WIDTH,
    draw_objects,
    evenly_spaced,
    has_matplotlib,
    plot_anchor_fit,
)

MAX_PRINTED = 20  # number of problems printed; `problems.txt` lists all of them
SAMPLE_COUNT, SHEET_COLUMNS = 12, 4  # images on the contact sheet


class CheckResult(NamedTuple):
    """Result of a check.

    Args:
        datasets: the datasets that were opened, by the path given for each.
        truths: their objects as COCO dicts, by the same paths. For a generated dataset, this draws
            every image.
        problems: one line per problem.
    """

    datasets: dict[str, DetectionDataset]
    truths: dict[str, dict[str, Any]]
    problems: list[str]


def check_data(
    paths: Sequence[str],
    output: Path,
    console: Console,
    cfg: Any = None,
    images: Path | None = None,
    class_map: ClassMap | None = None,
) -> int:
    """Checks datasets and writes their problems and samples of their images.

    Args:
        paths: see `open_dataset`.
        output: folder for `problems.txt`, a contact sheet of each dataset and, with a config, a
            histogram of its box sizes; created if missing.
        console: for the tables.
        cfg: config of a detector whose anchors are compared with the boxes. Masks and keypoints are
            checked if it uses them.
        images: folder of the images, if they are not next to the annotations.
        class_map: new names for the categories.

    Returns:
        The number of problems.

    Raises:
        AnnotationError: a dataset cannot be opened at all.
        ImportError: imagehash or, with a config, matplotlib is not installed.
        OutputError: a file cannot be written.
    """
    # Fail on a missing package before decoding every image.
    load_imagehash()
    if cfg is not None and not has_matplotlib():
        raise ImportError(MATPLOTLIB_MISSING)
    anchors = None if cfg is None else anchor_generator(cfg)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    parts = {"masks": False, "keypoints": False}
    if cfg is not None:
        parts = {"masks": cfg.MODEL.MASK_ON, "keypoints": cfg.MODEL.KEYPOINT_ON}
    checked = find_problems(paths, images, class_map, **parts)
    file = output / "problems.txt"
    with writing(file):
        file.write_text("".join(f"{line}\n" for line in checked.problems), encoding="utf-8")
    for number, (path, dataset) in enumerate(checked.datasets.items(), start=1):
        truth = checked.truths[path]
        _print_classes(path, dataset, truth["annotations"], console)
        sheet = output / f"{number}_samples.png"
        with writing(sheet):
            samples(dataset).save(sheet)
        console.print(str(sheet))
        if anchors is not None:
            fit = fit_anchors(cfg, anchors, truth)
            _print_anchors(fit, console)
            histogram = output / f"{number}_box_sizes.png"
            plot_anchor_fit(fit, histogram)
            console.print(str(histogram))
    for line in checked.problems[:MAX_PRINTED]:
        console.print(line)
    more = len(checked.problems) - MAX_PRINTED
    if more > 0:
        console.print(f"and {more} more: {file}")
    return len(checked.problems)


def find_problems(
    paths: Sequence[str],
    images: Path | None = None,
    class_map: ClassMap | None = None,
    **parts: bool,
) -> CheckResult:
    """Finds the problems of each dataset and those between datasets.

    Every pixel of every image is decoded. In addition to everything that `DetectionDataset`
    rejects, these are problems: duplicate object ids, objects of one class with the same box, one
    file listed as two images, the same picture under two names in one dataset or in two, and
    categories that differ from those of the first dataset.

    Args:
        paths: see `open_dataset`; duplicates are ignored.
        images: folder of the images.
        class_map: new category names by old ones.
        parts: masks, keypoints: whether to check them.
    """
    options: dict[str, Any] = {"on_error": "skip", "check": "decode", **parts}
    options["merged"] = tuple(class_map or ())
    if images is not None:
        options["image_dir"] = images
    datasets: dict[str, DetectionDataset] = {}
    truths: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for path in dict.fromkeys(paths):
        dataset = datasets[path] = open_dataset(path, **options)
        truths[path] = dataset.ground_truth()
        duplicates = _duplicates(dataset, truths[path]["annotations"])
        problems += [f"{path}: {line}" for line in (*dataset.broken, *duplicates)]
    if class_map:
        rename_all(list(datasets.values()), class_map)
    problems += [*different_categories(datasets.items()), *_duplicate_images(datasets)]
    return CheckResult(datasets, truths, problems)


def samples(dataset: DetectionDataset) -> Any:
    """Draws a contact sheet of some images with their objects."""
    chosen, side = evenly_spaced(range(len(dataset)), SAMPLE_COUNT), SHEET_WIDTH // SHEET_COLUMNS
    drawn = [draw_objects(dataset.image(i), dataset.target(i), dataset.names, side) for i in chosen]
    return contact_sheet(drawn, SHEET_COLUMNS, SHEET_WIDTH)


def _duplicates(dataset: DetectionDataset, annotations: list[dict[str, Any]]) -> Iterator[str]:
    ids = [a["id"] for a in annotations]
    for id in ids:
        if not isinstance(id, Hashable):
            yield f"annotation {shown(id)}: broken id: expected a number or text"
    for id, count in Counter(id for id in ids if isinstance(id, Hashable)).items():
        if count > 1:
            yield f"annotation {id}: duplicate id: {count} objects have it"
    objects = Counter((a["image_id"], a["category_id"], tuple(a["bbox"])) for a in annotations)
    for (image, category, box), count in objects.items():
        if count > 1:
            name = dataset.names[dataset.label_of[category] - 1]
            yield f"image {image}: duplicate object: {count} of {name} with bbox {list(box)}"


def _duplicate_images(datasets: dict[str, DetectionDataset]) -> Iterator[str]:
    locations = [
        (path, index) for path, dataset in datasets.items() for index in range(len(dataset))
    ]
    files = [datasets[path].image_path(index) for path, index in locations]
    for group in find_duplicate_images(files):
        first, *duplicates = ((*locations[i], files[i]) for i in group)
        for path, index, file in duplicates:
            image = f"image {datasets[path].images[index]['id']}"
            original = f"image {datasets[first[0]].images[first[1]]['id']} ({first[2]})"
            relation = "same file as" if file.resolve() == first[2].resolve() else "same image as"
            if path != first[0]:
                relation, original = f"leakage: {relation}", f"{original} of {first[0]}"
            yield f"{path}: {image} ({file}): {relation} {original}"


def _print_classes(
    path: str, dataset: DetectionDataset, annotations: list[dict[str, Any]], console: Console
) -> None:
    counts = Counter((dataset.label_of[a["category_id"]], a["iscrowd"]) for a in annotations)
    crowds = any(a["iscrowd"] for a in annotations)
    used = {a["image_id"] for a in annotations}
    empty = sum(image["id"] not in used for image in dataset.images)
    title = f"{path}: {len(dataset)} images, {empty} of them without objects"
    table = Table("class", "objects", *["crowds"] * crowds, title=title)
    for label, name in enumerate(dataset.names, start=1):
        table.add_row(name, *(str(counts[label, crowd]) for crowd in range(1 + crowds)))
    console.print(table)
    if dataset.mended:
        text = ", ".join(f"{count} x {kind}" for kind, count in dataset.mended.items())
        console.print(f"corrected: {text}")


def _print_anchors(fit: AnchorFit, console: Console) -> None:
    ratios = ", ".join(f"{ratio:g}" for ratio in fit.ratios)
    title = f"sizes of the anchors, pixels (height / width: {ratios})"
    table = Table("stride", title, "boxes", f"of them with IoU {fit.high:g} or more")
    for level, (stride, sides) in enumerate(zip(fit.strides, fit.anchor_sides, strict=True)):
        sizes = sorted({round(side) for side in sides})
        table.add_row(str(stride), ", ".join(map(str, sizes)), *map(str, fit.level_counts(level)))
    console.print(table)
    console.print(
        f"{fit.unmatched} of {len(fit.iou)} boxes match no anchor (IoU below {fit.low:g})"
    )
