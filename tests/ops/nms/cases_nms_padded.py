import torch
from cases_nms import ALIGNED, overlaps
from suppression import Suppression, greedy

import detops


def padded(oracle):
    def call(boxes, *given):
        keep = oracle(boxes, *given)
        return torch.cat([keep, keep.new_full((len(boxes) - len(keep),), -1)]), torch.tensor(
            len(keep)
        )

    return call


def kept(keep, count):
    return keep[: int(count)]


def plain(boxes, scores, labels, threshold):
    return detops.nms_padded(boxes, scores, threshold)


def labelled(boxes, scores, labels, threshold):
    return detops.nms_padded(boxes, scores, threshold, idxs=labels)


CASES = [
    Suppression("nms_padded", plain, padded(greedy(overlaps)), ALIGNED, kept=kept),
    Suppression(
        "nms_padded, labels",
        labelled,
        padded(greedy(overlaps, labelled=True)),
        ALIGNED,
        kept=kept,
        separates=True,
    ),
]
