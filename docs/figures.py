"""Draws the figures of the API pages with the ops themselves: ``python docs/figures.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import Polygon
from torch import Tensor

import detops
from detops.bench.report import OURS, PLAIN, THEIRS, pyplot, save

FOLDER = Path(__file__).parent / "api" / "figures"
COLOURS = (OURS, THEIRS, "#2e933c", "#8f5db7")
FIGURES: dict[str, Callable[[], Any]] = {}


def figure(draw: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a function that returns a figure, under its name."""
    FIGURES[draw.__name__] = draw
    return draw


def panels(count: int, height: float = 2.6) -> tuple[Any, Any]:
    """Creates a figure with a row of axes."""
    return pyplot().subplots(1, count, figsize=(3.1 * count, height), squeeze=False)


def image_axis(axis: Any, width: float, height: float, title: str = "") -> None:
    """Sets limits in pixels, with y downwards."""
    axis.set(xlim=(0, width), ylim=(height, 0), aspect="equal", title=title)
    axis.grid(visible=False)


def outline(axis: Any, corners: Tensor, colour: str, style: str = "-", text: str = "") -> None:
    """Draws a polygon with corners ``[8]``."""
    points = corners.view(4, 2)
    axis.add_patch(Polygon(points, fill=False, edgecolor=colour, linestyle=style, linewidth=1.6))
    axis.text(*points[0], text, color=colour, va="bottom", fontsize=8)


def upright(box: Tensor) -> Tensor:
    """Returns the corners ``[8]`` of a box ``[4]``."""
    x1, y1, x2, y2 = box
    return torch.stack([x1, y1, x2, y1, x2, y2, x1, y2])


def show(axis: Any, values: Tensor, title: str, **options: Any) -> None:
    """Draws a feature map ``[H, W]`` as pixels."""
    axis.imshow(values, extent=(0, values.size(1), values.size(0), 0), **options)
    image_axis(axis, values.size(1), values.size(0), title)


def ring_image(size: int = 32) -> Tensor:
    """Returns an image ``[1, 1, size, size]`` whose positions all look different."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    return ((x - 12.0).square() + (y - 14.0).square()).sqrt().mul(0.6).sin()[None, None] + x / size


BOXES = torch.tensor(
    [[8.0, 12, 40, 52], [12, 17, 44, 57], [16, 8, 48, 47], [56, 18, 88, 52], [62, 23, 94, 54]]
)
SCORES = torch.tensor([0.9, 0.8, 0.6, 0.85, 0.5])


@figure
def nms() -> Any:
    fig, ((axis,),) = panels(1)
    kept = detops.nms(BOXES, SCORES, 0.5).tolist()
    for k, (box, score) in enumerate(zip(BOXES, SCORES, strict=True)):
        stays = k in kept
        outline(
            axis, upright(box), OURS if stays else PLAIN, "-" if stays else "--", f"{score:.2f}"
        )
    image_axis(axis, 100, 60)
    return fig


@figure
def soft_nms() -> Any:
    fig, ((axis,),) = panels(1)
    shifts = torch.linspace(0, 10, 101)
    for colour, method in zip(COLOURS, ("linear", "gaussian", "naive"), strict=False):
        overlaps, factors = [], []
        for shift in shifts:
            boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(2, 1)
            boxes[1, 0::2] += shift
            scores = torch.tensor([1.0, 0.5])
            keep, left = detops.soft_nms(boxes, scores, 0.3, min_score=0.0, method=method)
            overlaps.append(float(detops.box_iou(boxes[:1], boxes[1:])))
            factors.append(2 * float(left[keep == 1]) if 1 in keep else 0.0)
        axis.plot(overlaps, factors, color=colour, label=method)
    axis.set(xlabel="IoU with a better box", ylabel="score factor")
    axis.legend()
    return fig


@figure
def weighted_box_fusion() -> Any:
    fig, ((axis,),) = panels(1)
    models = torch.tensor([0, 1, 1, 0, 1])
    model_masks = [models == model for model in range(2)]
    labels = [torch.zeros(int(mask.sum()), dtype=torch.int64) for mask in model_masks]
    inputs = ([x[mask] for mask in model_masks] for x in (BOXES, SCORES))
    fused, scores, _ = detops.weighted_box_fusion(*inputs, labels, iou_threshold=0.4)
    for box, score, model in zip(BOXES, SCORES, models, strict=True):
        outline(axis, upright(box), COLOURS[1 + model], "--", f"{score:.2f}")
    for box, score in zip(fused, scores, strict=True):
        outline(axis, upright(box), OURS, "-", f"   {score:.2f}")
    image_axis(axis, 100, 60)
    return fig


def pooling_figure(pooled: Tensor, corners: Tensor, title: str) -> Any:
    """Draws a feature map with a box, and the pooled values."""
    fig, ((left, right),) = panels(2)
    show(left, ring_image()[0, 0], "map")
    outline(left, corners, "white")
    show(right, pooled[0, 0], title)
    return fig


@figure
def roi_align() -> Any:
    box = torch.tensor([6.0, 5, 26, 22])
    return pooling_figure(
        detops.roi_align(ring_image(), [box[None]], 7), upright(box), "7 x 7 bins"
    )


@figure
def roi_align_rotated() -> Any:
    box = torch.tensor([[16.0, 14, 22, 11, 30]])
    pooled = detops.roi_align_rotated(ring_image(), [box], (5, 10))
    return pooling_figure(pooled, detops.box_convert(box, "cxcywhr", "xyxyxyxy")[0], "5 x 10 bins")


@figure
def roi_pool() -> Any:
    box = torch.tensor([6.0, 5, 26, 22])
    return pooling_figure(detops.roi_pool(ring_image(), [box[None]], 7), upright(box), "7 x 7 bins")


@figure
def deform_conv2d() -> Any:
    fig, (axes,) = panels(2)
    generator = torch.Generator().manual_seed(1)
    offsets = 1.2 * torch.randn(9, 2, generator=generator)
    taps = torch.cartesian_prod(*[torch.tensor([2.0, 4, 6])] * 2)  # dilation 2
    for axis, offset, title in zip(
        axes, (torch.zeros(9, 2), offsets), ("no offsets", "with offsets"), strict=True
    ):
        image = torch.zeros(1, 1, 9, 9, requires_grad=True)
        expanded = offset.view(1, 18, 1, 1).expand(1, 18, 5, 5)
        result = detops.deform_conv2d(image, expanded, torch.ones(1, 1, 3, 3), dilation=2)
        result[0, 0, 2, 2].backward()
        assert image.grad is not None
        show(axis, image.grad[0, 0], title, cmap="Blues")
        y, x = (taps + offset).T
        axis.plot(x + 0.5, y + 0.5, ".", color=THEIRS)
    return fig


@figure
def box_iou() -> Any:
    fig, ((axis,),) = panels(1)
    shifts = torch.linspace(0, 2, 101)
    box = torch.tensor([[0.0, 0, 1, 1]])
    shifted = torch.tensor([[0.0, 0, 1, 0.4]]).repeat(101, 1)
    shifted[:, 0::2] += shifts[:, None]
    for colour, op in zip(
        COLOURS,
        (detops.box_iou, detops.generalized_box_iou, detops.distance_box_iou,
         detops.complete_box_iou),
        strict=True,
    ):  # fmt: skip
        axis.plot(shifts, op(box, shifted)[0], color=colour, label=op.__name__)
    axis.set(xlabel="shift in box widths", ylabel="overlap")
    axis.legend(fontsize=7)
    return fig


@figure
def box_iou_rotated() -> Any:
    fig, ((axis,),) = panels(1)
    angles = torch.linspace(-180, 180, 361)
    box = torch.tensor([[0.0, 0, 60, 20, 0]])
    rotated = box.repeat(361, 1)
    rotated[:, 4] = angles
    axis.plot(angles, detops.box_iou_rotated(box, rotated)[0], color=OURS)
    axis.set(xlabel="angle in degrees", ylabel="IoU", ylim=(0, 1.05))
    return fig


@figure
def box_convert() -> Any:
    fig, ((axis,),) = panels(1)
    boxes = torch.tensor([[20.0, 20, 30, 12, 0], [60, 20, 30, 12, 30], [100, 20, 30, 12, 90]])
    corners = detops.box_convert(boxes, "cxcywhr", "xyxyxyxy")
    for colour, box, c in zip(COLOURS, boxes, corners, strict=False):
        outline(axis, c, colour)
        axis.plot(*c[:2], "o", color=colour)
        axis.text(*box[:2], f"{box[4]:.0f}", ha="center", va="center")
    image_axis(axis, 120, 40)
    return fig


@figure
def sigmoid_focal_loss() -> Any:
    fig, ((axis,),) = panels(1)
    logits = torch.linspace(-4, 4, 161)
    for colour, gamma in zip(COLOURS, (0, 1, 2, 5), strict=True):
        loss = detops.sigmoid_focal_loss(logits, torch.ones(161), alpha=-1, gamma=gamma)
        axis.plot(logits, loss, color=colour, label=f"gamma {gamma}")
    axis.set(xlabel="logit of a positive", ylabel="loss")
    axis.legend()
    return fig


@figure
def box_losses() -> Any:
    fig, ((left, right),) = panels(2)
    shifts = torch.linspace(0.01, 2, 100)
    for colour, op in zip(
        COLOURS,
        (detops.generalized_box_iou_loss, detops.distance_box_iou_loss,
         detops.complete_box_iou_loss),
        strict=False,
    ):  # fmt: skip
        shifted = torch.tensor([[0.0, 0, 1, 0.4]]).repeat(100, 1)
        shifted[:, 0::2] += shifts[:, None]
        shifted.requires_grad_()
        losses = op(shifted, torch.tensor([[0.0, 0, 1, 1]]))
        losses.sum().backward()
        assert shifted.grad is not None
        name = op.__name__.split("_")[0]
        left.plot(shifts, losses.detach(), color=colour, label=name)
        right.plot(shifts, shifted.grad[:, 0::2].sum(1), color=colour, label=name)
    left.set(xlabel="shift in box widths", title="loss")
    right.set(xlabel="shift in box widths", title="gradient")
    left.legend()
    return fig


@figure
def paste_masks_in_image() -> Any:
    fig, ((left, right),) = panels(2)
    cells = torch.tensor([0.1, 0.6, 0.9, 0.7, 0.2])
    mask = (cells[:, None] * cells).sqrt()[None]
    box = torch.tensor([[6.0, 5, 34, 25]])
    for axis, threshold, title in ((left, -1.0, "probabilities"), (right, 0.5, "at least 0.5")):
        pasted = detops.paste_masks_in_image(mask, box, (30, 40), threshold)
        show(axis, pasted[0].float(), title, cmap="Blues")
        outline(axis, upright(box[0]), THEIRS)
    return fig


@figure
def corner_pool() -> Any:
    fig, axes = panels(3)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(1, 1, 12, 12, generator=generator) ** 6
    pooled = [(mode, detops.corner_pool(x, mode)) for mode in ("top", "left")]
    for axis, (title, values) in zip(axes[0], [("map", x), *pooled], strict=True):
        show(axis, values[0, 0], title, cmap="Blues", vmin=0, vmax=1)
    return fig


@figure
def carafe() -> Any:
    fig, ((left, right),) = panels(2)
    image = (ring_image(12) > 0.4).float()
    fine = image.repeat_interleave(2, 2).repeat_interleave(2, 3)
    # A pixel of the output weights the neighbours that are similar to it.
    neighbours = torch.nn.functional.unfold(image, 3, padding=1).view(1, 9, 12, 12)
    neighbours = neighbours.repeat_interleave(2, 2).repeat_interleave(2, 3)
    kernels = (-6 * (neighbours - fine).abs()).softmax(1)
    show(left, image[0, 0], "map", cmap="Blues")
    show(right, detops.carafe(image, kernels, 3, 1, 2)[0, 0], "twice as large", cmap="Blues")
    return fig


@figure
def min_area_polygons() -> Any:
    fig, ((axis,),) = panels(1)
    generator = torch.Generator().manual_seed(5)
    points = torch.randn(9, 2, generator=generator) * torch.tensor([16.0, 5])
    turn = torch.tensor([[0.87, -0.5], [0.5, 0.87]])
    points = points @ turn + torch.tensor([50.0, 30])
    outline(axis, detops.min_area_polygons(points.view(1, 18))[0], OURS)
    axis.plot(*points.T, "o", color=THEIRS)
    image_axis(axis, 100, 60)
    return fig


def draw(folder: Path) -> list[Path]:
    """Writes all figures into a folder, and creates it if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return [save(make(), folder / f"{name}.svg") for name, make in FIGURES.items()]


if __name__ == "__main__":
    draw(FOLDER)
