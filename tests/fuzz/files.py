"""Loaders and what they are given: files that are damaged, or made to do harm.

A loader takes a file or refuses it by its own error, runs nothing that is in it, starts no process,
connects to nothing, and writes nowhere.
"""

import io
import json
import os
import pickle
import random
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from detops.config import ConfigError, load_config
from detops.data import AnnotationError, load_image, open_dataset
from detops.data.class_map import read_class_map
from detops.data.image import ImageError
from detops.engine.checkpoint import CheckpointError, load_checkpoint, save_weights
from detops.engine.pickled import read_pickle

from .check import require
from .damage import damaged, damaged_inside

PIXELS = 1_000_000  # that an image may have here
MEMORY = 1 << 30  # bytes that a process may grow by while it reads
# What no file may have done, by the names of Python's audit events.
HARM = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
HARM += ("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open")
HARM += ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod")
HARM += ("exec", "pty.spawn", "ctypes.dlopen", "os.truncate", "shutil.rmtree")


class Loader(NamedTuple):
    """Something that reads files."""

    suffix: str
    contents: Callable[[], list[bytes]]  # right ones
    load: Callable[[Path, random.Random], Any]
    errors: tuple[type[Exception], ...]
    is_archive: bool = False


def _picture(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@cache
def _pictures() -> list[bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    wide = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50)
    return [
        _encoded(_picture(), "PNG"),
        _encoded(_picture("P"), "PNG", transparency=0),
        _encoded(wide, "PNG"),
        _encoded(_picture(), "JPEG", exif=exif),
        _encoded(_picture("CMYK"), "JPEG", progressive=True),
        _encoded(_picture(), "GIF", save_all=True, append_images=[_picture()]),
        _encoded(_picture("1"), "BMP"),
        _encoded(_picture(), "TIFF", compression="tiff_lzw"),
        _encoded(wide, "TIFF"),
        _encoded(_picture(), "WEBP"),
        _encoded(_picture(), "ICO"),
        _encoded(_picture(), "PPM"),
        _encoded(_picture("L"), "PCX"),
        _encoded(_picture(), "TGA"),
    ]


OBJECTS: list[dict[str, Any]] = [
    {"bbox": [2, 3, 20, 10], "segmentation": [[2, 3, 22, 3, 22, 13, 2, 13]], "iscrowd": 0},
    {"bbox": [1, 1, 9, 9], "segmentation": {"size": [30, 40], "counts": [41, 9, 21, 9, 1120]}},
    {"bbox": [0, 0, 5, 5], "segmentation": {"size": [30, 40], "counts": "Y19e0"}, "iscrowd": 1},
]


def _coco(more: dict[str, Any] | None = None) -> bytes:
    category = {"id": 3, "name": "cat", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
    places = {"keypoints": [3, 4, 2, 9, 9, 1], "num_keypoints": 2, "area": 200.5}
    annotations = [
        {"id": i, "image_id": 7, "category_id": 3} | places | box for i, box in enumerate(OBJECTS)
    ]
    images = [{"id": 7, "file_name": "a.png", "width": 40, "height": 30} | (more or {})]
    return json.dumps(
        {
            "images": images,
            "annotations": annotations,
            "categories": [category | ({"frequency": "f"} if more else {})],
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


def _data(kind: str, place: str = "", **files: bytes) -> Callable[[Path, random.Random], Any]:
    """Opens a data set whose file is ``place`` of a folder, with an image, and reads it whole."""

    def load(path: Path, rng: random.Random) -> None:
        root = path.parent
        target = root / (place or path.name)
        for name, content in ({"a.png": _pictures()[0]} | files).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        options: dict[str, Any] = {"on_error": rng.choice(("raise", "skip", "skip"))}
        options["masks"] = rng.choice((None, False, True))
        if kind in ("coco", "lvis"):
            options["keypoints"] = rng.choice((None, False, True))
        if kind in ("cvat", "label-studio"):
            options["image_dir"] = root
        with _watched():
            dataset = open_dataset(f"{kind}:{root if place else target}", **options)
            for k in range(len(dataset)):
                dataset[k]
            dataset.ground_truth()
            dataset.describe_problems()

    return load


def _weights() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pt"
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        save_weights(path, model.state_dict(), "MODEL: {}\n", ["cat"])
        sealed = path.read_bytes()
        state = {"config": "MODEL: {}\n", "names": ["cat"], "model": model.state_dict()}
        torch.save(state, path)
        plain = path.read_bytes()
        torch.save(state, path, _use_new_zipfile_serialization=False)
        return [sealed, plain, path.read_bytes()]


def _pickles() -> list[bytes]:
    arrays = {"model": {"a.weight": np.ones((2, 3), np.float32), "b": np.arange(4)}}
    return [pickle.dumps(arrays | {"__author__": "x"}, protocol) for protocol in (0, 2, 4)]


def watched(call: Callable[[Path], Any]) -> Callable[[Path, random.Random], Any]:
    """A loader that needs nothing but the file."""

    def load(path: Path, _: random.Random) -> Any:
        with _watched():
            return call(path)

    return load


LOADERS: dict[str, Loader] = {
    "image": Loader(
        "", _pictures, watched(lambda path: load_image(path, max_pixels=PIXELS)), (ImageError,)
    ),
    "coco": Loader(".json", lambda: [_coco()], _data("coco"), (AnnotationError,)),
    "lvis": Loader(".json", lambda: [_coco(LVIS)], _data("lvis"), (AnnotationError,)),
    "voc": Loader(
        ".xml",
        lambda: [VOC],
        _data("voc", "Annotations/a.xml", **{"JPEGImages/a.png": _pictures()[0]}),
        (AnnotationError,),
    ),
    "yolo": Loader(
        ".yaml",
        lambda: [YOLO],
        _data(
            "yolo",
            "data.yaml",
            **{"images/train/a.png": _pictures()[0], "labels/train/a.txt": LABELS},
        ),
        (AnnotationError,),
    ),
    "yolo_labels": Loader(
        ".txt",
        lambda: [LABELS],
        _data(
            "yolo",
            "labels/train/a.txt",
            **{"images/train/a.png": _pictures()[0], "data.yaml": YOLO},
        ),
        (AnnotationError,),
    ),
    "cvat": Loader(".xml", lambda: [CVAT], _data("cvat"), (AnnotationError,)),
    "label_studio": Loader(
        ".json",
        lambda: [json.dumps(LABEL_STUDIO).encode()],
        _data("label-studio"),
        (AnnotationError,),
    ),
    "class_map": Loader(
        ".yaml",
        lambda: [b"cat: dog\n'1': bird\n"],
        watched(lambda path: read_class_map(str(path))),
        (ValueError,),
    ),
    "config": Loader(".yaml", lambda: [CONFIG], watched(load_config), (ConfigError,)),
    "checkpoint": Loader(".pt", _weights, watched(load_checkpoint), (CheckpointError,)),
    "checkpoint_parts": Loader(
        ".pt",
        lambda: _weights()[1:2],
        watched(load_checkpoint),
        (CheckpointError,),
        is_archive=True,
    ),
    "pickle": Loader(".pkl", _pickles, watched(read_pickle), (CheckpointError,)),
}


@cache
def _contents(name: str) -> list[bytes]:
    return LOADERS[name].contents()


class _Watch:
    """What Python does while a file is read."""

    def __init__(self) -> None:
        self.looks = False
        self.harm: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.looks:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if writes or event in HARM:
            self.harm.append(f"{event} {arguments!r}"[:300])


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@cache
def _watch() -> _Watch:
    """The one of this process: a hook stays."""
    watch = _Watch()
    sys.addaudithook(watch)
    return watch


@contextmanager
def _watched() -> Iterator[None]:
    watch = _watch()
    watch.looks, watch.harm = True, []
    try:
        yield
    finally:
        watch.looks = False


@cache
def _prepare(name: str) -> None:
    """Reads each right file: what is imported then is not imported because of a wrong one."""
    Image.init()
    for content in _contents(name):
        require(read(name, content, random.Random(0)), f"{name} refuses what is right")


def read(name: str, content: bytes, rng: random.Random) -> bool:
    """Whether a loader took a file.

    Raises:
        Find: it did harm, or raised what is not its error.
    """
    loader = LOADERS[name]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "data" / f"file{loader.suffix}"
        path.parent.mkdir()
        path.write_bytes(content)
        taken = True
        try:
            loader.load(path, rng)
        except loader.errors:
            taken = False
        except Exception as error:
            require(False, f"{type(error).__name__}: {str(error)[:300]}")
    return taken


def file_of(seed: int, name: str) -> bytes:
    """The file with this number for a loader."""
    rng = random.Random(seed)
    content = rng.choice(_contents(name))
    damage = damaged_inside if LOADERS[name].is_archive else damaged
    return damage(content, rng)


def check_file(seed: int, name: str) -> bool:
    """Whether the loader took the file.

    Raises:
        Find: something does not hold.
    """
    _prepare(name)
    content, rng = file_of(seed, name), random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = read(name, content, rng)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    require(grown < MEMORY, f"took {grown >> 20} MiB")
    if _watch().harm:  # an import that comes late does such things too, but once
        read(name, content, random.Random(seed))
        require(not _watch().harm, f"did {_watch().harm[:3]}")
    return taken
