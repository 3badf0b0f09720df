# SPDX-License-Identifier: MIT
"""COCO evaluation with pycocotools, in one process or several."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from ..data.detection import DetectionDataset
from ..data.problems import is_number
from ..distributed import gather_objects, on_main, rank, world_size
from ..ops import masks_to_rle
from .coco_inputs import check_drawable, complete_detections, complete_truth
from .detect import Detector

STANDARD_LIMIT, STANDARD_KEYPOINTS_LIMIT = 100, 20
DEFAULT_SIGMA = 0.05  # sigma of each keypoint, unless there are 17 as in COCO
# Optional fields of a detection: pycocotools' IoU type, and the name of the field in COCO results.
IOU_TYPES = {"masks": ("segm", "segmentation"), "keypoints": ("keypoints", "keypoints")}


def evaluate(
    detector: Detector,
    dataset: DetectionDataset,
    max_detections: int | None = None,
    report: Callable[[int, int], None] | None = None,
    keep: Callable[[list[dict[str, Any]]], Any] | None = None,
) -> dict[str, Any]:
    """Detects objects in every image of a dataset and evaluates the detections.

    Several processes (`detops.distributed`) divide the images among them; all return the result.
    Masks and keypoints are evaluated too if both the model and the dataset have them.

    Args:
        detector: must detect the dataset's categories; detections of other categories are dropped.
        dataset: a dataset without a transform.
        max_detections: see `coco_metrics`.
        report: called with (images done, total images) after each image.
        keep: called with all detections as COCO results, see `to_coco`, in the main process.

    Raises:
        ValueError: the detector lacks a category of the dataset.

    Example:
        >>> from detops.cli.options import TREE_CROWNS
        >>> detector = detops.engine.Detector.from_checkpoint(TREE_CROWNS / "weights.pt")
        >>> dataset = detops.data.open_dataset("tree_crowns/val.json")
        >>> evaluate(detector, dataset)["objects"]
        71
    """
    ids = matched_category_ids(detector.names, dataset)
    evaluated = torch.tensor([False] + [id is not None for id in ids])
    found_kinds: set[str] = set()
    per_image: list[tuple[int, list[dict[str, Any]]]] = []
    for index in range(rank(), len(dataset), world_size()):
        found = detector.detect(dataset.image(index))
        found = {key: found[key][evaluated[found["labels"]]] for key in found.keys() - {"names"}}
        found_kinds |= found.keys() & IOU_TYPES.keys()
        image_id = dataset.images[index]["id"]
        per_image.append((index, to_coco(found, image_id, ids)))
        if report is not None:
            report(min(index + world_size(), len(dataset)), len(dataset))
    gathered = gather_objects((found_kinds, per_image))

    def compute() -> dict[str, Any]:
        truth = dataset.ground_truth()
        kinds = set().union(*(kinds for kinds, _ in gathered))
        # Restore the order of the dataset, so that the result does not depend on the number of
        # processes.
        entries = sorted((entry for _, part in gathered for entry in part), key=itemgetter(0))
        detections = [detection for _, found in entries for detection in found]
        if keep is not None:
            keep(detections)
        iou_types = ["bbox"]
        for key, (iou_type, field) in IOU_TYPES.items():
            if key in kinds and any(a.get(field) for a in truth["annotations"]):
                iou_types.append(iou_type)
        return coco_metrics(truth, detections, max_detections, iou_types)

    return on_main(compute)


def matched_category_ids(names: Sequence[str], dataset: DetectionDataset) -> list[Any]:
    """Returns the dataset's category id, or None, for each label 1..C of a detector.

    Args:
        names: category names of the detector.
        dataset: provides names and category ids. Case is ignored unless two names differ only in
            case.

    Raises:
        ValueError: the detector lacks a category of the dataset.
    """
    exact = [list(names), list(dataset.names)]
    folded = [[name.casefold() for name in side] for side in exact]
    if any(len(set(side)) < len(set(known)) for side, known in zip(folded, exact, strict=True)):
        folded = exact
    if not set(folded[1]) <= set(folded[0]):
        raise ValueError(
            f"{dataset.path}: categories {list(dataset.names)} differ from the detector's "
            f"{list(names)}"
        )
    id_by_name = dict(zip(folded[1], dataset.category_ids, strict=True))
    return [id_by_name.get(name) for name in folded[0]]


def to_coco(
    found: dict[str, Any], image_id: Any, category_ids: Sequence[Any]
) -> list[dict[str, Any]]:
    """Converts the detections of one image to COCO results.

    Args:
        found: boxes, labels and scores; masks and keypoints if there are any.
        image_id: id of the image.
        category_ids: category ids of labels 1..C, in order.

    Returns:
        image_id, category_id, bbox (x, y, width, height) and score of each detection; if present,
        segmentation as compressed run lengths and keypoints as x, y, 1 each.
    """
    boxes = found["boxes"].clone()
    boxes[:, 2:] -= boxes[:, :2]
    columns = (boxes.tolist(), found["labels"].tolist(), found["scores"].tolist())
    results = [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
        }
        for box, label, score in zip(*columns, strict=True)
    ]
    if "masks" in found:
        for result, rle in zip(results, masks_to_rle(found["masks"].squeeze(1)), strict=True):
            result["segmentation"] = rle
    if "keypoints" in found:
        points = found["keypoints"].flatten(1).tolist()
        for result, values in zip(results, points, strict=True):
            result["keypoints"] = values
    return results


def coco_metrics(
    ground_truth: dict[str, Any],
    detections: list[dict[str, Any]],
    max_detections: int | None = None,
    iou_types: Sequence[str] = ("bbox",),
) -> dict[str, Any]:
    """Computes average precision and recall of boxes, masks and keypoints.

    Args:
        ground_truth: a COCO dict of images, categories and annotations, with the missing fields and
            spellings that `detops.data` accepts: without `bbox`, the box is that of the mask;
            without `area`, the area is that of the mask or else of the box; without `iscrowd`, an
            object is no crowd. An id of 1.0 is read as 1. Polygon masks need the width and height
            of their image.
        detections: COCO results: image_id, category_id, bbox, score; segmentation, keypoints. A
            detection without a mask or keypoints is skipped when those are evaluated.
        max_detections: number of detections counted per image, highest scores first. COCO's
            standard is 100; an image with more objects cannot reach full recall under that limit.
            None means the larger of 100 and twice the maximum number of objects per image.
        iou_types: what to evaluate: "bbox"; "segm", by mask IoU; "keypoints", by object keypoint
            similarity with COCO's sigmas (0.05 each if there are not 17 keypoints).

    Returns:
        AP (IoU 0.50:0.95), AP50, AP75, AR and max_detections, the limit that they were computed
        with; under "classes" the same values by name of a category; under "standard" the same
        values with the limit 100 (keypoints: 20); under "segm" and "keypoints" the same values for
        masks and keypoints; and the counts images, objects (without crowds) and detections. A value
        is None if there is no ground truth.

    Raises:
        ValueError: an argument is out of range, or an annotation or detection lacks a required
            field.

    Example:
        >>> box = {"image_id": 1, "category_id": 1, "bbox": [2, 2, 20, 20]}
        >>> truth = {
        ...     "images": [{"id": 1, "width": 40, "height": 40}],
        ...     "categories": [{"id": 1, "name": "tree"}],
        ...     "annotations": [box],
        ... }
        >>> metrics = coco_metrics(truth, [box | {"score": 0.9}])
        >>> round(metrics["AP"], 3), metrics["objects"]
        (1.0, 1)
    """
    unknown = set(iou_types) - {"bbox", "segm", "keypoints"}
    if unknown:
        raise ValueError(f"iou_types: expected bbox, segm, keypoints, got {sorted(unknown)}")
    ground_truth, detections = complete_truth(ground_truth), complete_detections(detections)
    annotations = ground_truth["annotations"]
    if max_detections is None:
        per_image = Counter(annotation["image_id"] for annotation in annotations)
        max_detections = max(STANDARD_LIMIT, 2 * max(per_image.values(), default=0))
    if max_detections < 1:
        raise ValueError(f"max_detections: expected at least 1, got {max_detections}")
    metrics = {}
    for kind in iou_types:
        standard = STANDARD_KEYPOINTS_LIMIT if kind == "keypoints" else STANDARD_LIMIT
        limits = sorted({standard, max_detections})
        results = _accumulate(ground_truth, detections, limits, kind)
        metrics[kind] = {
            **_summary(results, limits.index(max_detections)),
            "max_detections": max_detections,
            "classes": {
                name: _summary(results, limits.index(max_detections), slice(index, index + 1))
                for index, name in enumerate(results["names"])
            },
            "standard": {
                **_summary(results, limits.index(standard)),
                "max_detections": standard,
            },
        }
    return {
        **metrics.pop("bbox", {}),
        **metrics,
        "images": len(ground_truth["images"]),
        "objects": sum(not annotation["iscrowd"] for annotation in annotations),
        "detections": len(detections),
    }


def accumulate(
    ground_truth: dict[str, Any],
    detections: list[dict[str, Any]],
    limits: list[int],
    kind: str = "bbox",
) -> dict[str, Any]:
    """Computes precision and recall with pycocotools.

    Args:
        ground_truth: a COCO dict.
        detections: COCO results.
        limits: maximum numbers of detections counted per image, ascending.
        kind: bbox, segm or keypoints.

    Returns:
        `precision` [IoU threshold, recall, class, 1, limit] and `recall` [IoU threshold, class, 1,
        limit] over objects of all sizes, -1 if there are none; the IoU `thresholds`, the `recalls`
        and the `names` of the classes.
    """
    truth, found = complete_truth(ground_truth), complete_detections(detections)
    return _accumulate(truth, found, limits, kind)


def _accumulate(truth: Any, found: Any, limits: list[int], kind: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = _build_coco_eval(truth, found, kind)
        evaluation.params.maxDets = limits
        evaluation.evaluate()
        evaluation.accumulate()
    params = evaluation.params
    names = {
        category["id"]: str(category.get("name", category["id"]))
        for category in truth["categories"]
    }
    return evaluation.eval | {
        "thresholds": params.iouThrs,
        "recalls": params.recThrs,
        "names": [names[id] for id in params.catIds],
    }


def build_coco_eval(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], kind: str = "bbox"
) -> Any:
    """Builds a pycocotools COCOeval over objects of all sizes, ready to evaluate.

    It prints to stdout.

    Args:
        ground_truth: see `coco_metrics`.
        detections: see `coco_metrics`.
        kind: bbox, segm or keypoints.

    Raises:
        ValueError: see `coco_metrics`.
    """
    return _build_coco_eval(complete_truth(ground_truth), complete_detections(detections), kind)


def _build_coco_eval(truth: dict[str, Any], found: list[dict[str, Any]], kind: str) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    # pycocotools sorts image ids, which fails for a mix of strings and integers, so renumber them.
    ids = {image["id"] for image in truth["images"]}
    ordered = sorted(ids, key=lambda id: (isinstance(id, str), id))
    number_by_id = {id: number for number, id in enumerate(ordered, start=1)}
    images = [image | {"id": number_by_id[image["id"]]} for image in truth["images"]]
    field = {"bbox": "bbox", **dict(IOU_TYPES.values())}[kind]
    # pycocotools adds fields to its input in place, and loadRes fails on an empty list, so build
    # both sides here from copies.
    sides = []
    for entries in (truth["annotations"], found):
        # An object without a mask can be neither detected nor missed by its mask.
        usable = [e for e in entries if e.get(field) and e["image_id"] in number_by_id]
        if kind == "segm":
            check_drawable(usable, truth["images"])
        if kind == "keypoints":
            usable = [_with_num_keypoints(entry) for entry in usable]
        # Ids start at 1, because pycocotools uses id 0 for "not matched".
        usable = [
            entry | {"id": number, "image_id": number_by_id[entry["image_id"]]}
            for number, entry in enumerate(usable, start=1)
        ]
        side = COCO()
        side.dataset = truth | {"images": images, "annotations": usable}
        side.createIndex()
        sides.append(side)
    annotations = sides[0].dataset["annotations"]
    evaluation = COCOeval(*sides, iouType=kind)
    params = evaluation.params
    params.areaRng, params.areaRngLbl = params.areaRng[:1], ["all"]
    if kind == "keypoints" and annotations:
        points = len(annotations[0]["keypoints"]) // 3
        if points != len(params.kpt_oks_sigmas):
            params.kpt_oks_sigmas = np.full(points, DEFAULT_SIGMA)
    return evaluation


def _with_num_keypoints(annotation: dict[str, Any]) -> dict[str, Any]:
    """Sets num_keypoints: pycocotools ignores objects where it is 0."""
    labelled = sum(visibility > 0 for visibility in annotation["keypoints"][2::3])
    declared = annotation.get("num_keypoints")
    return annotation | {"num_keypoints": declared if is_number(declared) else labelled}


def _summary(
    results: dict[str, Any], limit: int, classes: slice = slice(None)
) -> dict[str, float | None]:
    # pycocotools' summarize() expects fixed limits and returns -1 if they are missing.
    precision = results["precision"][:, :, classes, 0, limit]
    recall = results["recall"][:, classes, 0, limit]

    def at(threshold: float) -> np.ndarray:
        return precision[np.isclose(results["thresholds"], threshold)]

    values = {"AP": precision, "AP50": at(0.5), "AP75": at(0.75), "AR": recall}
    return {name: _mean(value) for name, value in values.items()}


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
