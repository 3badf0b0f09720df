# SPDX-License-Identifier: MIT
"""Datasets exported by CVAT as "CVAT for images"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ..messages import shown
from .detection import DetectionDataset, number_categories
from .files import as_on_disk, find_file, parse_integer, relative_name
from .image import MAX_PIXELS
from .masks import SegmentationError, encode_rows, rotated_corners
from .problems import AnnotationError, Problems, known_size

CORNERS = ("xtl", "ytl", "xbr", "ybr")
FILE_NAME = "annotations.xml"
# Children of an image element that are not shapes.
NON_SHAPES = ("attribute", "tag")


class CvatDetection(DetectionDataset):
    """Images and objects of a CVAT `annotations.xml`, version 1.1, "CVAT for images".

    Boxes (also rotated ones), polygons and masks are read. Polylines, points, ellipses, skeletons
    and cuboids count as broken, and so do the tracks of a video. Categories are the labels of the
    task, job or project, in its order. Images are searched for next to the file, in `images`, and
    there in the folder of their subset (`images/default`).

    Args:
        root: the file, or its folder.
        image_dir: folder of the images, if it is none of these.
        options: see `DetectionDataset`: on_error, check, masks, transform.

    Raises:
        AnnotationError: the file is missing or not in CVAT format, or, with on_error="raise",
            something in it is broken.

    Example:
        >>> from PIL import Image
        >>> Image.new("RGB", (40, 30)).save("a.png")
        >>> labels = "<labels><label><name>tree</name></label></labels>"
        >>> box = '<box label="tree" xtl="16" ytl="12" xbr="24" ybr="18"/>'
        >>> image = f'<image id="0" name="a.png" width="40" height="30">{box}</image>'
        >>> text = f"<annotations><meta><task>{labels}</task></meta>{image}</annotations>"
        >>> length = Path("annotations.xml").write_text(text)
        >>> CvatDetection("annotations.xml")[0][1]["boxes"]
        tensor([[16., 12., 24., 18.]])
    """

    def __init__(
        self, root: str | Path, image_dir: str | Path | None = None, **options: Any
    ) -> None:
        path = Path(root) / FILE_NAME if Path(root).is_dir() else Path(root)
        tree = _read(path)
        names = [label.findtext("name", "") for label in tree.iterfind("meta//labels/label")]
        folder = path.parent if image_dir is None else Path(image_dir)
        problems = Problems(path)
        images: list[dict] = []
        objects: list[dict] = []
        for element in tree.iterfind("image"):
            image = _image(element, folder)
            images.append(image)
            objects += _objects(element, image, folder, problems)
        for track in tree.iterfind("track"):
            problems.add(f"track {track.get('id')}", "track of a video", "export as images")
        categories = number_categories(names, objects)
        super().__init__(path, folder, images, categories, objects, problems, **options)


def _read(path: Path) -> ElementTree.Element:
    try:
        tree = ElementTree.parse(path).getroot()
    except OSError as error:
        raise AnnotationError(f"{path}: cannot read ({error.strerror})") from error
    except (ElementTree.ParseError, ValueError) as error:
        raise AnnotationError(f"{path}: not XML ({error})") from error
    if tree.tag != "annotations" or tree.find("meta//labels") is None:
        raise AnnotationError(f"{path}: not in CVAT format: no annotations with labels")
    return tree


def _image(element: ElementTree.Element, folder: Path) -> dict[str, Any]:
    name, subset = element.get("name", ""), element.get("subset", "default")
    locations = [as_on_disk(folder / location) for location in ("", "images", f"images/{subset}")]
    found = ((location, find_file(location, name)) for location in locations)
    existing = (
        relative_name(location / file, folder) for location, file in found if file is not None
    )
    sides = {side: parse_integer(element.get(side)) for side in ("width", "height")}
    file_name = next(existing, Path(name).as_posix()) if name else name
    return {"id": element.get("id", name), "file_name": file_name} | sides


def _objects(
    element: ElementTree.Element, image: dict[str, Any], folder: Path, problems: Problems
) -> Iterator[dict[str, Any]]:
    shapes = [shape for shape in element if shape.tag not in NON_SHAPES]
    for number, shape in enumerate(shapes, start=1):
        where = f"image {image['id']}, {shape.tag} {number}"
        try:
            geometry = _geometry(shape, image, folder)
        except (ValueError, OverflowError) as error:
            problems.add(where, f"broken {shape.tag}", str(error))
            continue
        if geometry is None:
            problems.add(where, "unsupported shape", shape.tag)
            continue
        label = shape.get("label", "")
        yield {"image_id": image["id"], "category_id": label, "where": where} | geometry


def _geometry(
    shape: ElementTree.Element, image: dict[str, Any], folder: Path
) -> dict[str, Any] | None:
    """Converts a shape to COCO fields; None for an unsupported kind, ValueError if broken."""
    if shape.tag == "box":
        left, top, right, bottom = (_number(shape, corner) for corner in CORNERS)
        box = [left, top, right - left, bottom - top]
        angle = _number(shape, "rotation", "0")
        if angle % 360 == 0:
            return {"bbox": box}
        centre = ((left + right) / 2, (top + bottom) / 2)
        return {"segmentation": [rotated_corners(box, angle, centre)]}
    if shape.tag == "polygon":
        points = shape.get("points", "").split(";")
        return {"segmentation": [[float(v) for point in points for v in point.split(",")]]}
    if shape.tag == "mask":
        size = known_size(image, folder)
        # An image file that cannot be read is reported separately.
        return {"segmentation": _mask(shape, *size)} if size else {}
    return None


def _number(shape: ElementTree.Element, name: str, default: str = "") -> float:
    return float(shape.get(name, default))


def _mask(shape: ElementTree.Element, width: Any, height: Any) -> dict[str, Any]:
    """Converts CVAT run lengths, row by row within a box, to COCO's of the whole image."""
    if not (type(height) is type(width) is int and height * width <= MAX_PIXELS):
        raise SegmentationError(f"mask of an image of {width} x {height} pixels")
    counts = [int(count) for count in shape.get("rle", "").split(",")]
    left, top, w, h = (int(_number(shape, name)) for name in ("left", "top", "width", "height"))
    if min(left, top, w - 1, h - 1) < 0 or left + w > width or top + h > height:
        raise SegmentationError(f"mask of {w} x {h} at {left}, {top} is not within the image")
    if min(counts) < 0 or sum(counts) != w * h:
        raise SegmentationError(f"run lengths do not add up to {w * h}: {shown(counts)}")
    return encode_rows(counts, (left, top, w, h), height, width)
