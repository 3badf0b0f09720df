import json
import sys

import numpy as np
import pytest
import torch
from pycocotools import mask as coco

import detops


def test_round_trip(device):
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(5, 13, 29, generator=generator) > 0.6
    masks[1] = False
    masks[2] = True
    encoded = json.loads(json.dumps(detops.masks_to_rle(masks.to(device))))
    assert [e["size"] for e in encoded] == [[13, 29]] * 5
    assert np.array_equal(coco.decode(encoded).transpose(2, 0, 1), masks.numpy())
    strided = masks.mT.contiguous().mT
    assert detops.masks_to_rle(strided) == detops.masks_to_rle(masks)
    assert detops.masks_to_rle(masks[:0]) == []
    expected = coco.encode(np.asfortranarray(masks[0].numpy().view(np.uint8)))
    assert encoded[0]["counts"] == expected["counts"].decode()


def test_bad_input(monkeypatch):
    with pytest.raises(ValueError, match=r"detops.masks_to_rle: masks must be bool \[N, H, W\]"):
        detops.masks_to_rle(torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match=r"got torch.bool \[2, 3\]"):
        detops.masks_to_rle(torch.zeros(2, 3, dtype=torch.bool))
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(ImportError, match="detops.masks_to_rle needs pycocotools"):
        detops.masks_to_rle(torch.zeros(1, 2, 3, dtype=torch.bool))
