"""Fixtures for tests of `detops detect`: a detector that finds something in every image."""

import pytest
import torch
from PIL import Image
from torch import nn

from detops import cli
from detops.engine import Detector

WIDTH, HEIGHT = 40, 30
POINTS = torch.stack([torch.arange(17.0) * 2, torch.arange(17.0), torch.ones(17)], 1)


class OneObject(nn.Module):
    """Finds one object in every image, with all fields that a detection may have."""

    def __init__(self, kinds=("masks", "keypoints")):
        super().__init__()
        self.kinds = kinds

    def forward(self, images):
        return [self.detections(image) for image in images]

    def detections(self, image):
        height, width = image.shape[1:]
        if height > 1000:
            raise RuntimeError("not enough memory: you tried to allocate 9 bytes")
        masks = torch.zeros(1, 1, height, width, dtype=torch.bool)
        masks[..., 3:9, 2:12] = True
        detections = {
            "boxes": torch.tensor([[2.0, 3, 12, 9]]),
            "labels": torch.tensor([1]),
            "scores": torch.tensor([0.75]),
        }
        detections |= {"masks": masks} if "masks" in self.kinds else {}
        scores = torch.arange(17.0)[None]
        points = {"keypoints": POINTS[None], "keypoints_scores": scores}
        return detections | (points if "keypoints" in self.kinds else {})


@pytest.fixture
def detect(monkeypatch, tmp_path, capsys):
    """Runs `detops detect` with a detector that finds something everywhere."""
    detector = Detector(OneObject(), ["cat", "dog"], device="cpu")
    monkeypatch.setattr(Detector, "from_checkpoint", lambda *_: detector)

    def run(*arguments):
        command = ["detect", "--weights", "w.pt", "--output", tmp_path / "out", *arguments]
        status = cli.main(list(map(str, command)))
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err.splitlines()

    return run


@pytest.fixture
def image_file(tmp_path):
    def make(name, size=(WIDTH, HEIGHT)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(path)
        return path

    return make
