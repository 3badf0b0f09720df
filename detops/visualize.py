# SPDX-License-Identifier: MIT
"""Drawing of detections."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from torch import Tensor

from .data.image import load_image
from .fonts import Font, font_for

# Bright on vegetation, asphalt and skin alike, with hues far from each other.
PALETTE = (
    (255, 193, 7),
    (255, 87, 100),
    (186, 130, 255),
    (255, 140, 0),
    (120, 230, 90),
    (255, 120, 210),
    (90, 160, 255),
    (230, 230, 120),
)
GOLDEN_SECTION = (5**0.5 - 1) / 2
# The pairs of COCO's seventeen person keypoints, counted from 0, that lines join.
PERSON_SKELETON = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8)),
    *((7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
PERSON_POINTS = 17
POINT_OUTLINE = (20, 20, 20, 255)
TRUTH_COLOUR = (0, 229, 255)
FILL_ALPHA, CONTOUR_ALPHA = 90, 255  # of masks
SMALL_SIDE = 1200  # pixels; images up to this size are enlarged to make tags legible
SMOOTHING = 2  # shapes are drawn this much larger and reduced, which smooths their edges
MAX_COORDINATE = 2.0**28  # outside every image; four times this still fits Pillow's int
MAX_SMOOTHED_PIXELS = 12_000_000  # above this, smoothing takes too much memory


def draw_detections(
    image: str | Path | Image.Image | np.ndarray | Tensor,
    boxes: Tensor,
    scores: Tensor | None = None,
    labels: Tensor | None = None,
    names: Sequence[str] | None = None,
    ground_truth: Tensor | None = None,
    masks: Tensor | None = None,
    keypoints: Tensor | None = None,
    skeleton: Sequence[tuple[int, int]] | None = None,
    *,
    line_width: float | None = None,
    tags: bool = True,
    enlarge: bool = True,
) -> Image.Image:
    """Draws boxes, and optionally masks and keypoints, on an image.

    Args:
        image: anything that `load_image` accepts.
        boxes: [n, 4] xyxy in the image's pixels.
        scores: [n], written on small tags.
        labels: [n], which select the colours of boxes and masks.
        names: names of the n boxes, written on the tags. If Pillow's own font lacks their script, a
            font of the system is used.
        ground_truth: [m, 4] xyxy, drawn with thin lines in a separate colour.
        masks: bool or uint8 [n, H, W] or [n, 1, H, W] in the image's pixels, drawn translucent with
            a contour.
        keypoints: [n, k, 3] as (x, y, visibility) in the image's pixels; drawn if the visibility is
            positive.
        skeleton: pairs of keypoints, counted from 0, to join by lines. By default that of COCO
            persons if there are 17 keypoints, else none.
        line_width: line width of the boxes, in pixels of the result; by default it grows with the
            result.
        tags: whether to draw tags.
        enlarge: whether to double the size of small images, which makes tags legible.

    Returns:
        An RGB image.

    Raises:
        ImageError: the image cannot be read.
        ValueError: boxes are not [n, 4] or not finite; scores, labels or names are not n; masks are
            not n of the image's size; keypoints are not [n, k, 3] or not finite; or the skeleton
            has other keypoints.

    Example:
        >>> image, boxes = torch.zeros(3, 40, 60), torch.tensor([[5.0, 5, 30, 30]])
        >>> draw_detections(image, boxes, scores=torch.tensor([0.9]), names=["tree"]).size
        (120, 80)
    """
    canvas = Image.fromarray(load_image(image).permute(1, 2, 0).numpy())
    boxes = _checked("boxes", boxes)
    truth = _checked("ground_truth", ground_truth if ground_truth is not None else boxes[:0])
    for argument, value in (("scores", scores), ("labels", labels), ("names", names)):
        if value is None:
            continue
        shape = list(value.shape) if isinstance(value, Tensor) else [len(value)]
        if shape != [len(boxes)]:
            raise ValueError(
                f"draw_detections: expected {len(boxes)} {argument}, one per box, got {shape}"
            )
    shapes = None if masks is None else _checked_masks(masks, len(boxes), canvas)
    points = None if keypoints is None else _checked_keypoints(keypoints, len(boxes))
    scale = 2 if enlarge and max(canvas.size) <= SMALL_SIDE else 1
    if scale > 1:
        size = (canvas.width * scale, canvas.height * scale)
        canvas = canvas.resize(size, Image.Resampling.BICUBIC)
    smoothing = SMOOTHING if canvas.width * canvas.height <= MAX_SMOOTHED_PIXELS else 1
    overlay = Image.new("RGBA", (canvas.width * smoothing, canvas.height * smoothing))
    draw = ImageDraw.Draw(overlay)
    # Lines and text are legible at a thousand pixels, and grow with images of more than 2000.
    unit = smoothing * max(1.0, max(canvas.size) / 2000)
    line = round(2 * unit) if line_width is None else max(1, round(line_width * smoothing))

    # Clamped: Pillow visits all pixels of a rectangle's sides, however far outside they are.
    width = round(unit)
    limit = torch.tensor(overlay.size).repeat(2) + 2 * width
    for box in (truth * scale * smoothing).clamp(min=-2 * width).minimum(limit).tolist():
        draw.rectangle(_sorted_corners(box), outline=(*TRUTH_COLOUR, 220), width=width)
    # Lowest score first, so that the boxes and tags with the highest scores end up on top.
    order = range(len(boxes)) if scores is None else scores.argsort().tolist()
    colours = [PALETTE[0]] * len(boxes)
    if labels is not None:
        colours = [class_colour(label) for label in labels.tolist()]
    if shapes is not None:
        for index in order:
            _draw_mask(overlay, shapes[index], colours[index], scale * smoothing, round(1.5 * unit))
    texts = []
    for index in order:
        corners = _sorted_corners((boxes[index] * scale * smoothing).tolist())
        colour = colours[index]
        draw.rounded_rectangle(corners, radius=3 * unit, outline=(*colour, 255), width=line)
        parts = [] if names is None else [names[index]]
        parts += [] if scores is None else [f"{float(scores[index]):.2f}"]
        texts.append((corners, " ".join(parts), colour))
    if points is not None:
        if skeleton is None:
            skeleton = PERSON_SKELETON if points.shape[1] == PERSON_POINTS else ()
        if any(not 0 <= end < points.shape[1] for pair in skeleton for end in pair):
            raise ValueError(
                f"draw_detections: expected a skeleton of keypoints below {points.shape[1]}, got "
                f"{list(skeleton)}"
            )
        points[..., :2] *= scale * smoothing
        for index in order:
            _draw_keypoints(draw, points[index].tolist(), skeleton, colours[index], unit)
    for corners, text, colour in texts if tags else ():
        if text:
            _draw_tag(draw, corners, text, colour, font_for(text, round(11 * unit)), unit)
    if smoothing > 1:
        overlay = overlay.reduce(smoothing)
    return Image.alpha_composite(canvas.convert("RGBA"), overlay).convert("RGB")


def with_legend(image: Image.Image, entries: Mapping[str, tuple[int, int, int]]) -> Image.Image:
    """Puts a strip with a legend of the colours above an image.

    Args:
        image: RGB image.
        entries: colours by their meaning, from left to right.

    Returns:
        An image of the same width, and higher by the lines of text that the entries need.

    Example:
        >>> image = Image.new("RGB", (300, 200))
        >>> with_legend(image, {"detected": PALETTE[0], "annotated": TRUTH_COLOUR}).width
        300
    """
    unit = max(1.0, max(image.size) / 2000)
    font = font_for("".join(entries), round(15 * unit))
    box_size, gap = round(14 * unit), round(8 * unit)
    row_height = box_size + 2 * gap
    positions, x, y = [], gap, gap
    for text in entries:
        width = box_size + gap + round(font.getlength(text))
        if x > gap and x + width > image.width:
            x, y = gap, y + row_height
        positions.append((x, y))
        x += width + 3 * gap
    result = Image.new("RGB", (image.width, image.height + y + row_height - gap), (255, 255, 255))
    result.paste(image, (0, result.height - image.height))
    draw = ImageDraw.Draw(result)
    for (x, y), (text, colour) in zip(positions, entries.items(), strict=True):
        draw.rectangle((x, y, x + box_size, y + box_size), outline=(20, 20, 20), fill=colour)
        middle = (x + box_size + gap, y + box_size / 2)
        draw.text(middle, text, fill=(20, 20, 20), font=font, anchor="lm")
    return result


def class_colour(label: int) -> tuple[int, int, int]:
    """Returns the colour of a class, counted from 1: from `PALETTE`, or a unique one beyond it.

    Example:
        >>> len({class_colour(label) for label in range(1, 1001)})
        1000
    """
    if 1 <= label <= len(PALETTE):
        return PALETTE[label - 1]
    # Steps of the golden section keep the hues of nearby labels apart. Irrational steps keep
    # saturation and value from following the hue.
    saturation, value = 0.45 + 0.5 * (label * 2**0.5 % 1), 0.75 + 0.25 * (label * 3**0.5 % 1)
    red, green, blue = colorsys.hsv_to_rgb(label * GOLDEN_SECTION % 1, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def contact_sheet(
    images: Sequence[Image.Image], columns: int = 4, width: int = 1920
) -> Image.Image:
    """Arranges images in rows and columns, each scaled to fit into a square.

    Args:
        images: images of any size; without any, the sheet is one empty square.
        columns: maximum number of columns.
        width: width of the sheet in pixels.

    Example:
        >>> contact_sheet([Image.new("RGB", (9, 9))] * 3, columns=2, width=20).size
        (20, 20)
    """
    columns = min(columns, max(1, len(images)))
    side, rows = width // columns, max(1, -(-len(images) // columns))
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        sheet.paste(ImageOps.contain(image, (side, side)), (column * side, row * side))
    return sheet


def _draw_mask(
    overlay: Image.Image, mask: np.ndarray, colour: tuple[int, int, int], scale: int, line: int
) -> None:
    """Draws an enlarged mask with an inner contour; replaces what the overlay had there."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    if len(rows) == 0:
        return
    top, left = rows[0], columns[0]
    cropped = mask[top : rows[-1] + 1, left : columns[-1] + 1]
    # A border of zeros closes the contour where the mask touches its box.
    shape = Image.fromarray(np.pad(cropped, 1).astype(np.uint8) * 255)
    size = (shape.width * scale, shape.height * scale)
    shape = shape.resize(size, Image.Resampling.BICUBIC).point(lambda value: 255 * (value >= 128))
    corner = (int(left - 1) * scale, int(top - 1) * scale)
    overlay.paste((*colour, CONTOUR_ALPHA), corner, shape)
    inner = shape.filter(ImageFilter.MinFilter(2 * line + 1))
    overlay.paste((*colour, FILL_ALPHA), corner, inner)


def _draw_keypoints(
    draw: ImageDraw.ImageDraw,
    points: list[list[float]],
    skeleton: Sequence[tuple[int, int]],
    colour: tuple[int, int, int],
    unit: float,
) -> None:
    for first, second in skeleton:
        (x1, y1, v1), (x2, y2, v2) = points[first], points[second]
        if v1 > 0 and v2 > 0:
            draw.line((x1, y1, x2, y2), fill=(*colour, 255), width=round(2 * unit))
    radius = 3 * unit
    for x, y, visibility in points:
        if visibility > 0:
            circle = (x - radius, y - radius, x + radius, y + radius)
            draw.ellipse(circle, fill=(*colour, 255), outline=POINT_OUTLINE, width=round(unit))


def _draw_tag(
    draw: ImageDraw.ImageDraw,
    corners: list[float],
    text: str,
    colour: tuple[int, int, int],
    font: Font,
    unit: float,
) -> None:
    pad = 2 * unit
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = right - left + 2 * pad, bottom - top + 2 * pad
    x, y = corners[0], corners[1] - height
    # A tag sits on top of its box. At the upper border it moves into the box, and at the right
    # border back into the image.
    y = corners[1] if y < 0 else y
    x = max(0, min(x, draw.im.size[0] - width))
    draw.rounded_rectangle((x, y, x + width, y + height), radius=2 * unit, fill=(*colour, 225))
    draw.text((x + pad - left, y + pad - top), text, fill=(20, 20, 20, 255), font=font)


def _checked(argument: str, boxes: Tensor) -> Tensor:
    if boxes.dim() != 2 or boxes.shape[1] != 4:
        raise ValueError(
            f"draw_detections: expected {argument} of shape [n, 4], got {list(boxes.shape)}"
        )
    finite = torch.isfinite(boxes).all()
    if not finite:
        raise ValueError(f"draw_detections: expected finite {argument}, got NaN or infinity")
    return boxes.detach().float().clamp(-MAX_COORDINATE, MAX_COORDINATE).cpu()


def _checked_masks(masks: Tensor, count: int, image: Image.Image) -> np.ndarray:
    expected = [count, image.height, image.width]
    if masks.dim() == 4 and masks.shape[1] == 1:
        masks = masks[:, 0]
    if list(masks.shape) != expected or masks.dtype not in (torch.bool, torch.uint8):
        raise ValueError(
            f"draw_detections: expected masks of bool or uint8 {expected}, got {masks.dtype} "
            f"{list(masks.shape)}"
        )
    return masks.bool().cpu().numpy()


def _checked_keypoints(keypoints: Tensor, count: int) -> Tensor:
    if keypoints.dim() != 3 or len(keypoints) != count or keypoints.shape[2] != 3:
        raise ValueError(
            f"draw_detections: expected keypoints of shape [{count}, k, 3], got "
            f"{list(keypoints.shape)}"
        )
    if not torch.isfinite(keypoints).all():
        raise ValueError("draw_detections: expected finite keypoints, got NaN or infinity")
    return keypoints.detach().float().clamp(-MAX_COORDINATE, MAX_COORDINATE).cpu()


def _sorted_corners(box: list[float]) -> list[float]:
    """Returns the corners in the order that Pillow requires, whatever a detector returned."""
    x1, y1, x2, y2 = box
    return [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]
