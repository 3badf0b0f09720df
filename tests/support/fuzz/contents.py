"""Valid files of every kind that detops reads."""

import io
import json
import pickle
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from detops.engine.checkpoint import save_weights


def noise_image(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Returns a noise image."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Encodes an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@cache
def image_files() -> list[bytes]:
    """Returns images in formats and modes of many kinds."""
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
    return [
        encoded(noise_image(), "PNG"),
        encoded(noise_image("P"), "PNG", transparency=0),
        encoded(wide, "PNG"),
        encoded(noise_image(), "JPEG", exif=exif),
        encoded(noise_image("CMYK"), "JPEG", progressive=True),
        encoded(noise_image(), "GIF", save_all=True, append_images=[noise_image()]),
        encoded(noise_image("1"), "BMP"),
        encoded(noise_image(), "TIFF", compression="tiff_lzw"),
        encoded(wide, "TIFF"),
        encoded(noise_image(), "WEBP"),
        encoded(noise_image(), "ICO"),
        encoded(noise_image(), "PPM"),
        encoded(noise_image("L"), "PCX"),
        encoded(noise_image(), "TGA"),
        encoded(noise_image(), "AVIF"),
        encoded(noise_image(), "JPEG2000"),
        encoded(noise_image(), "MPO", save_all=True, append_images=[noise_image()]),
    ]


@cache
def unsupported_image_files() -> list[bytes]:
    """Returns images in formats that detops does not read.

    Pillow runs Ghostscript on EPS. It reads formats other than those above with its own code.
    """
    return [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\nshowpage\n%%EOF\n",
        encoded(noise_image(), "EPS"),
        encoded(noise_image(), "SGI"),
    ]


COCO_OBJECTS: list[dict[str, Any]] = [
    {"bbox": [2, 3, 20, 10], "segmentation": [[2, 3, 22, 3, 22, 13, 2, 13]], "iscrowd": 0},
    {"bbox": [1, 1, 9, 9], "segmentation": {"size": [30, 40], "counts": [41, 9, 21, 9, 1120]}},
    {"bbox": [0, 0, 5, 5], "segmentation": {"size": [30, 40], "counts": "Y19e0"}, "iscrowd": 1},
]


def coco(extra: dict[str, Any] | None = None) -> bytes:
    """Returns annotations of an image with objects; LVIS adds ``extra`` about the image."""
    category = {"id": 3, "name": "cat", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    keypoints = {"keypoints": [3, 4, 2, 9, 9, 1], "num_keypoints": 2, "area": 200.5}
    annotations = [
        {"id": i, "image_id": 7, "category_id": 3} | keypoints | box
        for i, box in enumerate(COCO_OBJECTS)
    ]
    images = [{"id": 7, "file_name": "a.png", "width": 40, "height": 30} | (extra or {})]
    return json.dumps(
        {
            "images": images,
            "annotations": annotations,
            "categories": [category | ({"frequency": "f"} if extra else {})],
        }
    ).encode()


LVIS = {
    "neg_category_ids": [3],
    "not_exhaustive_category_ids": [],
    "coco_url": "http://images.cocodataset.org/val2017/a.png",
}
VOC = b"""<annotation><filename>a.png</filename><size><width>40</width><height>30</height></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>11</xmax>
<ymax>9</ymax></bndbox></object></annotation>"""
CVAT = b"""<annotations><meta><task><labels><label><name>cat</name></label></labels></task></meta>
<image id="0" name="a.png" width="40" height="30"><box label="cat" xtl="16" ytl="12" xbr="24"
 ybr="18" rotation="30"/><polygon label="cat" points="1,1;9,1;9,9"/><mask label="cat" rle="3, 2, 5"
 left="1" top="1" width="5" height="2"/></image></annotations>"""
LABEL_STUDIO = [
    {
        "id": 1,
        "data": {"image": "/data/upload/1/1a2b3c4d-a.png"},
        "annotations": [
            {
                "was_cancelled": False,
                "result": [
                    {
                        "type": "rectanglelabels",
                        "original_width": 40,
                        "original_height": 30,
                        "value": dict.fromkeys(("x", "y"), 40)
                        | {"width": 20, "height": 20, "rotation": 5, "rectanglelabels": ["cat"]},
                    },
                    {
                        "type": "polygonlabels",
                        "original_width": 40,
                        "original_height": 30,
                        "value": {"points": [[1, 1], [9, 1], [9, 9]], "polygonlabels": ["cat"]},
                    },
                ],
            }
        ],
    }
]
CONFIG = b"""MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  MASK_ON: true
  ROI_HEADS: {BATCH_SIZE_PER_IMAGE: 64}
DATASETS: {TRAIN: [a.json, b.json]}
SOLVER:
  BASE_LR: 1e-3
  STEPS: [10, 20]
"""
YOLO = b"path: .\ntrain: images/train\nval: images/train\nnc: 2\nnames: {0: cat, 1: dog}\n"
LABELS = b"0 0.5 0.5 0.25 0.2\n1 0.1 0.1 0.9 0.1 0.9 0.9 0.5 0.4\n"


def weights() -> list[bytes]:
    """Returns checkpoints of this package, and files of current and old PyTorch versions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pt"
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        save_weights(path, model.state_dict(), "MODEL: {}\n", ["cat"])
        saved = path.read_bytes()
        state = {"config": "MODEL: {}\n", "names": ["cat"], "model": model.state_dict()}
        torch.save(state, path)
        plain = path.read_bytes()
        torch.save(state, path, _use_new_zipfile_serialization=False)
        return [saved, plain, path.read_bytes()]


def pickles() -> list[bytes]:
    """Returns pickles like those of detectron2, and dicts that each occur twice in the next one."""
    nested: dict[str, Any] = {}
    for _ in range(64):
        nested = {"a": nested, "b": nested}
    arrays = {"model": {"a.weight": np.ones((2, 3), np.float32), "b": np.arange(4)}}
    legacy = [pickle.dumps(arrays | {"__author__": "x"}, protocol) for protocol in (0, 2, 4, 5)]
    return [*legacy, pickle.dumps(nested, 2)]


class _View:
    """An array that shares its data with another."""

    def __init__(self, data: str) -> None:
        self.state = (1, (len(data),), np.dtype("u1"), False, data)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray, ((0,),), self.state


def greedy_pickles() -> list[bytes]:
    """Returns pickles that request excessive memory or time."""
    data = "\0" * 200_000
    return [
        b"\x80\x02})" + b"2\x86" * 64 + b"K\x01s.",  # a pair of pairs of pairs as a key
        b"\x80\x02}r" + struct.pack("<I", 1 << 28) + b"0",  # a memo with empty slots
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 33) + b".",
        pickle.dumps({str(i): _View(data) for i in range(20_000)}, 2),
    ]


def onnx_models() -> list[bytes]:
    """Returns a detector whose detections are the values of its image."""
    from onnx import TensorProto, helper

    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [3, "h", "w"])
    found = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [3, "h", "w"])
    node = helper.make_node("Identity", ["image"], ["boxes"])
    graph = helper.make_graph([node], "detector", [image], [found])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"names": "cat"})
    return [model.SerializeToString()]


class _Halves(torch.nn.Module):
    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"boxes": image / 2}


def packages() -> list[bytes]:
    """Returns torch.export packages for images of any height."""
    height = torch.export.Dim("height", min=2, max=64)
    file = io.BytesIO()
    program = torch.export.export(_Halves(), (torch.zeros(3, 5, 6),), dynamic_shapes=({1: height},))
    torch.export.save(program, file, extra_files={"names": "cat"})
    return [file.getvalue()]


def requests() -> list[bytes]:
    """Returns requests to detops serve: for its page, for detections, for ops."""

    def request(line: str, body: bytes = b"", *headers: str) -> bytes:
        lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1:8000", "Accept: */*", *headers]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def post(body: bytes) -> bytes:
        return request("POST /api/detect?model=a", body, f"Content-Length: {len(body)}")

    photo = image_files()[3]
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(photo), photo)
    return [
        *map(post, (image_files()[0], photo, image_files()[9])),
        request("POST /api/detect?model=a&model=b", chunks, "Transfer-Encoding: chunked"),
        request("GET /"),
        request("GET /api/about", b"", "Origin: http://127.0.0.1:8000"),
        request("GET /api/samples/one"),
        request("GET /api/ops/nms?seed=3&objects=12"),
        request("GET /api/ops/roi_align?x1=2.5&bins=7&aligned=0"),
    ]
