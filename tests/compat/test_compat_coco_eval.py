"""``detectron2._C.COCOeval*`` gives the metrics of pycocotools."""

import contextlib
import copy
import io

import numpy as np
import pytest

from detops.compat import detectron2

cocoeval = pytest.importorskip("pycocotools.cocoeval")
from pycocotools.coco import COCO  # noqa: E402

_C = detectron2.FUNCTIONS


class DetopsCOCOeval(cocoeval.COCOeval):
    """Calls the four names as detectron2's ``COCOeval_opt`` does."""

    def evaluate(self):
        p = self.params
        p.imgIds = list(np.unique(p.imgIds))
        p.catIds = list(np.unique(p.catIds)) if p.useCats else p.catIds
        p.maxDets = sorted(p.maxDets)
        self._prepare()
        categories = p.catIds if p.useCats else [-1]
        self.ious = {(i, c): self.computeIoU(i, c) for i in p.imgIds for c in categories}

        def annotations(instances, detected):
            return [
                _C["InstanceAnnotation"](
                    int(x["id"]),
                    x["score"] if detected else x.get("score", 0.0),
                    x["area"],
                    bool(x.get("iscrowd", 0)),
                    bool(x.get("ignore", 0)),
                )
                for x in instances
            ]

        def table(instances, detected):
            rows = [[annotations(instances[i, c], detected) for c in p.catIds] for i in p.imgIds]
            return rows if p.useCats else [[[x for cell in row for x in cell]] for row in rows]

        self.found = _C["COCOevalEvaluateImages"](
            p.areaRng,
            p.maxDets[-1],
            p.iouThrs,
            [[self.ious[i, c] for c in categories] for i in p.imgIds],
            table(self._gts, False),
            table(self._dts, True),
        )
        self._paramsEval = copy.deepcopy(p)

    def accumulate(self):
        self.eval = _C["COCOevalAccumulate"](self._paramsEval, self.found)
        counts = self.eval["counts"]
        self.eval["recall"] = np.array(self.eval["recall"]).reshape(counts[:1] + counts[2:])
        for name in ("precision", "scores"):
            self.eval[name] = np.array(self.eval[name]).reshape(counts)


def random_dataset(seed, images=6, categories=3):
    """Returns objects, some of them crowds, and detections around them."""
    random = np.random.default_rng(seed)
    objects, detections = [], []
    for image in range(1, images):  # one image stays empty
        for category in range(1, categories + 1):
            for _ in range(random.integers(0, 5)):
                box = [*(random.random(2) * 300), *(2 ** (2 + 6 * random.random(2)))]
                objects.append(
                    dict(id=len(objects) + 1, image_id=image, category_id=category, bbox=box)
                    | dict(area=box[2] * box[3], iscrowd=int(random.random() < 0.2))
                )
                for _ in range(random.integers(0, 4)):
                    jittered = (np.array(box) * (1 + (random.random(4) - 0.5) / 4)).tolist()
                    score = round(float(random.random()), 1)  # scores tie
                    detections.append(
                        dict(image_id=image, category_id=category, bbox=jittered, score=score)
                    )
    truth = COCO()
    truth.dataset = dict(
        info={},
        images=[dict(id=i, width=600, height=600) for i in range(images)],
        categories=[dict(id=c, name=str(c)) for c in range(1, categories + 1)],
        annotations=objects,
    )
    truth.createIndex()
    return truth, truth.loadRes(detections)


@pytest.mark.parametrize("by_category", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_those_of_pycocotools(seed, by_category):
    with contextlib.redirect_stdout(io.StringIO()):
        truth, detections = random_dataset(seed)
        evaluators = []
        for kind in (cocoeval.COCOeval, DetopsCOCOeval):
            evaluator = kind(truth, detections, "bbox")
            evaluator.params.useCats = int(by_category)
            evaluator.evaluate()
            evaluator.accumulate()
            evaluator.summarize()
            evaluators.append(evaluator)
    theirs, ours = evaluators
    assert 0 < theirs.stats[0] < 1
    np.testing.assert_array_equal(ours.stats, theirs.stats)
    for name in ("precision", "recall", "scores"):
        np.testing.assert_array_equal(ours.eval[name], theirs.eval[name])
