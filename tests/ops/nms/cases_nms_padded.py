import torch
from cases_nms import ALIGNED, overlaps
from suppression import Suppression, greedy

import detops


def padded(oracle):
    def call(boxes, *arguments):
        keep = oracle(boxes, *arguments)
        return torch.cat([keep, keep.new_full((len(boxes) - len(keep),), -1)]), torch.tensor(
            len(keep)
        )

    return call


def kept(keep, count):
    return keep[: int(count)]


def nms_padded(boxes, scores, labels, threshold):
    return detops.nms_padded(boxes, scores, threshold)


def nms_padded_by_label(boxes, scores, labels, threshold):
    return detops.nms_padded(boxes, scores, threshold, idxs=labels)


CASES = [
    Suppression("nms_padded", nms_padded, padded(greedy(overlaps)), ALIGNED, kept=kept),
    Suppression(
        "nms_padded, labels",
        nms_padded_by_label,
        padded(greedy(overlaps, labelled=True)),
        ALIGNED,
        kept=kept,
        separates_labels=True,
    ),
]
