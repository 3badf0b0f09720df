# SPDX-License-Identifier: MIT
"""Opening of datasets, whatever their format."""

from __future__ import annotations

import ast
import inspect
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from .class_map import ClassMap, renamed
from .coco import CocoDetection, LvisDetection
from .cvat import FILE_NAME as CVAT_FILE
from .cvat import CvatDetection
from .detection import DetectionDataset
from .files import is_yaml
from .label_studio import LabelStudioDetection
from .problems import AnnotationError, OnError
from .shapes import Shapes
from .voc import VocDetection, annotation_folder
from .yolo import CLASS_FILES, YoloDetection

PACKAGE = Path(__file__).resolve().parent.parent
FORMATS: dict[str, Callable[..., DetectionDataset]] = {
    "coco": CocoDetection,
    "lvis": LvisDetection,
    "voc": VocDetection,
    "yolo": YoloDetection,
    "cvat": CvatDetection,
    "label-studio": LabelStudioDetection,
    "shapes": Shapes,
}
TEXT_OPTIONS = ("names", "split", "image_dir", "image_key")
COMMON_OPTIONS = ("on_error", "check", "masks", "keypoints", "transform", "merged")


def open_dataset(spec: str | Path, **options: Any) -> DetectionDataset:
    """Opens a dataset by its path.

    The format is detected from the contents: a folder with `Annotations` is Pascal VOC; one with
    `data.yaml`, `classes.txt` or `obj.names`, or a YAML file, is YOLO; one with `annotations.xml`,
    or an XML file, is CVAT. Any other folder is searched for a JSON file, and so is its folder
    `annotations`. The JSON file is Label Studio if it contains a list, LVIS if its categories have
    frequencies, COCO otherwise. Without a JSON file, XML files in `annotations` are Pascal VOC.

    Args:
        spec: a path; a relative one is searched for in the working folder, then among the demo
            files, then next to the package. A format can precede it, as in ``voc:data/VOC2007``;
            ``shapes:train`` and ``shapes:test`` are generated. Options can follow as in a URL:
            ``voc:data/VOC2007?split=val&difficult=use``.
        options: options of the format's class, in addition to those in `spec`: see
            `DetectionDataset` (on_error, check, masks, keypoints, transform, merged),
            `CocoDetection` (image_dir), `VocDetection`, `YoloDetection`, `CvatDetection`,
            `LabelStudioDetection`, `Shapes`. In a COCO folder, `split` selects the file with that
            text in its name.

    Raises:
        AnnotationError: the path does not exist, its format is unknown, or its class rejects it.
        ValueError: the format does not have an option, or the option's value is invalid.

    Example:
        >>> dataset = open_dataset("tree_crowns/val.json")
        >>> dataset.names, len(dataset)
        (('tree',), 1)
    """
    text = str(spec)
    kind, colon, rest = text.partition(":")
    if not colon or kind not in FORMATS:
        kind, rest = "", text
    location, _, query = rest.partition("?")
    if query and not resolve_path(rest).exists():
        options = _parsed(text, query) | options
    else:
        location = rest
    if kind == "shapes":
        options.pop("merged", None)  # the names of shapes are unique
        return _open(kind, text, location, options)
    path = resolve_path(location)
    if not path.exists():
        raise AnnotationError(f"{path}: cannot read: no such file or folder")
    kind = kind or _format_from_path(path)
    if kind not in ("voc", "yolo", "cvat") and path.is_dir():
        path = _json_file(path, options.pop("split", None))
    return _open(kind or _format_from_content(path), text, path, options)


def load_datasets(
    paths: str | Sequence[str],
    image_dir: str | Path | None = None,
    on_error: OnError = "raise",
    class_map: ClassMap | None = None,
    **options: Any,
) -> list[DetectionDataset]:
    """Opens datasets that share their categories: the same names, in the order of their ids.

    Args:
        paths: see `open_dataset`.
        image_dir: folder of the images, for datasets in COCO, LVIS, CVAT and Label Studio format.
        on_error: see `DetectionDataset`.
        class_map: new category names by old ones; see `DetectionDataset.rename`. A name need not be
            in all of the datasets.
        options: see `open_dataset`.

    Raises:
        AnnotationError: no path is given, categories differ by more than case, or a dataset is
            rejected.
        ValueError: a name in `class_map` is in none of the datasets.

    Example:
        >>> train, val = load_datasets(["tree_crowns/train.json", "tree_crowns/val.json"])
        >>> train.names == val.names
        True
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if not paths:
        raise AnnotationError("no dataset given (DATASETS.TRAIN or DATASETS.TEST is empty)")
    if image_dir is not None:
        options["image_dir"] = image_dir
    options |= {"on_error": on_error, "merged": tuple(class_map or ())}
    datasets = [open_dataset(path, **options) for path in paths]
    if class_map:
        rename_all(datasets, class_map)
    for problem in different_categories((dataset.path, dataset) for dataset in datasets):
        raise AnnotationError(problem)
    return datasets


def different_categories(datasets: Iterable[tuple[object, DetectionDataset]]) -> Iterator[str]:
    """Yields a line for each dataset whose categories differ, ignoring case, from the first one's.

    Args:
        datasets: pairs of a name, for the lines, and a dataset.
    """
    named = list(datasets)
    for name, other in named[1:]:
        first, one = named[0]
        if _folded(other) != _folded(one):
            theirs, ours = list(other.names), list(one.names)
            yield f"{name}: categories {theirs} differ from {ours} of {first}"


def distinct_names(datasets: Iterable[DetectionDataset]) -> list[str]:
    """Returns the datasets' file names, or their paths if two files have the same name.

    Datasets from the same file, which are splits of it, are numbered.
    """
    paths = [dataset.path for dataset in datasets]
    same_name, same_path = Counter(path.name for path in set(paths)), Counter(paths)
    names = []
    for index, path in enumerate(paths):
        name = path.name if same_name[path.name] == 1 else str(path)
        number = paths[: index + 1].count(path)
        names.append(name if same_path[path] == 1 else f"{name} {number}")
    return names


def resolve_path(path: str | Path) -> Path:
    """Returns a data path as given if it exists, else in the demo files or next to the package."""
    from ..cli.options import ASSETS

    candidates: Iterable[Path] = (Path(path), ASSETS / path, PACKAGE.parent / path)
    return next((candidate for candidate in candidates if candidate.exists()), Path(path))


def rename_all(datasets: Sequence[DetectionDataset], class_map: ClassMap) -> None:
    """Renames categories of datasets; a name need not be in all of them.

    Raises:
        ValueError: a name in `class_map` is in none of the datasets.
    """
    # Check all names together, to find one that is in none of the datasets.
    renamed([name for dataset in datasets for name in dataset.names], class_map, "datasets")
    for dataset in datasets:
        known = set(_folded(dataset))
        dataset.rename({old: new for old, new in class_map.items() if old.casefold() in known})


def _folded(dataset: DetectionDataset) -> list[str]:
    return [name.casefold() for name in dataset.names]


def _format_from_path(path: Path) -> str:
    """Returns the format that the name or the folder's contents show; empty for JSON formats."""
    if path.is_file():
        if is_yaml(path):
            return "yolo"
        return "cvat" if path.suffix.lower() == ".xml" else ""
    if (path / "Annotations").is_dir():
        return "voc"
    if any((path / name).is_file() for name in CLASS_FILES):
        return "yolo"
    if (path / CVAT_FILE).is_file():
        return "cvat"
    return "voc" if annotation_folder(path) and not _json_files(path) else ""


def _format_from_content(path: Path) -> str:
    """Returns the format of a JSON file."""
    content = path.read_bytes().removeprefix(BOM_UTF8)
    if content.lstrip().startswith(b"["):
        return "label-studio"
    # COCO files have no such key, and the LVIS reader could read them anyway.
    return "lvis" if b'"frequency"' in content else "coco"


def _parsed(text: str, query: str) -> dict[str, Any]:
    try:
        return {name: _value(name, text) for name, text in parse_qsl(query, strict_parsing=True)}
    except ValueError as error:
        raise ValueError(f"{text}: expected options as in '?split=val', got {query!r}") from error


def _value(name: str, text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    parts = value if isinstance(value, list | tuple) else [value]
    # A class or folder may be called 1.50, 0x10 or 2017.
    is_text = all(isinstance(part, str | None) for part in parts)
    return value if is_text or name not in TEXT_OPTIONS else text


def _open(kind: str, text: str, location: str | Path, options: dict[str, Any]) -> DetectionDataset:
    reader = FORMATS[kind]
    own_options = [name for name in inspect.signature(reader).parameters if name != "options"][1:]
    known = (*own_options, *COMMON_OPTIONS)
    for name in options:
        if name not in known:
            raise ValueError(f"{text}: {kind} has no option {name!r}; it has {', '.join(known)}")
    return reader(location, **options)


def _json_files(folder: Path) -> list[Path]:
    found = [*folder.glob("*.json"), *folder.glob("annotations/*.json")]
    return sorted(file for file in found if file.is_file())


def _json_file(folder: Path, split: Any) -> Path:
    files = _json_files(folder)
    matching = [file for file in files if split is None or str(split) in file.stem]
    if len(matching) == 1:
        return matching[0]
    if not files:
        raise AnnotationError(
            f"{folder}: unknown format: no folder 'Annotations', no data.yaml, no {CVAT_FILE} and "
            "no JSON file"
        )
    names = ", ".join(file.name for file in matching or files)
    raise AnnotationError(f"{folder}: choose one of {names} (by its path, or ?split=...)")
