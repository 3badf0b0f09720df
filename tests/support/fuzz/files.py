"""Loaders, and their inputs: damaged and malicious files.

A loader accepts a file or rejects it with its own error. It executes no code from the file, starts
no process, connects to nothing and writes nothing.
"""

import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import detops.export
from detops.bench.memory import peak_resident, reset_peak
from detops.config import ConfigError, load_config
from detops.data import AnnotationError, load_image, open_dataset
from detops.data.class_map import read_class_map
from detops.data.image import ImageError
from detops.engine.checkpoint import CheckpointError, load_checkpoint
from detops.engine.pickled import read_pickle

from . import contents as right
from .check import require
from .damage import damaged, damaged_inside
from .server import Refused, answer

PIXELS = 1_000_000  # limit for images here
MEMORY = 1 << 30  # bytes that a process may grow by while it reads
# Names of Python's audit events that no file may cause.
HARM = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen")
HARM += ("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open")
HARM += ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod")
HARM += ("exec", "pty.spawn", "ctypes.dlopen", "os.truncate", "shutil.rmtree")


class Loader(NamedTuple):
    """A loader of one kind of file."""

    suffix: str
    contents: Callable[[], list[bytes]]  # valid ones
    load: Callable[[Path, random.Random], Any]
    errors: tuple[type[Exception], ...]
    is_archive: bool = False
    wrong: Callable[[], list[bytes]] = list  # rejected contents, which are also damaged


def _data(kind: str, place: str = "", **files: bytes) -> Callable[[Path, random.Random], Any]:
    """Returns a loader of a dataset with its file at ``place`` and one image."""

    def load(path: Path, rng: random.Random) -> None:
        root = path.parent
        target = root / (place or path.name)
        for name, content in ({"a.png": right.pictures()[0]} | files).items():
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


def watched(call: Callable[[Path], Any]) -> Callable[[Path, random.Random], Any]:
    """Returns a loader that needs only the file."""

    def load(path: Path, _: random.Random) -> Any:
        with _watched():
            return call(path)

    return load


def _exported(path: Path, _: random.Random) -> None:
    detops.export.load(path)


LOADERS: dict[str, Loader] = {
    "image": Loader(
        "",
        right.pictures,
        watched(lambda path: load_image(path, max_pixels=PIXELS)),
        (ImageError,),
        wrong=right.other_pictures,
    ),
    "coco": Loader(".json", lambda: [right.coco()], _data("coco"), (AnnotationError,)),
    "lvis": Loader(".json", lambda: [right.coco(right.LVIS)], _data("lvis"), (AnnotationError,)),
    "voc": Loader(
        ".xml",
        lambda: [right.VOC],
        _data("voc", "Annotations/a.xml", **{"JPEGImages/a.png": right.pictures()[0]}),
        (AnnotationError,),
    ),
    "yolo": Loader(
        ".yaml",
        lambda: [right.YOLO],
        _data(
            "yolo",
            "data.yaml",
            **{"images/train/a.png": right.pictures()[0], "labels/train/a.txt": right.LABELS},
        ),
        (AnnotationError,),
    ),
    "yolo_labels": Loader(
        ".txt",
        lambda: [right.LABELS],
        _data(
            "yolo",
            "labels/train/a.txt",
            **{"images/train/a.png": right.pictures()[0], "data.yaml": right.YOLO},
        ),
        (AnnotationError,),
    ),
    "cvat": Loader(".xml", lambda: [right.CVAT], _data("cvat"), (AnnotationError,)),
    "label_studio": Loader(
        ".json",
        lambda: [json.dumps(right.LABEL_STUDIO).encode()],
        _data("label-studio"),
        (AnnotationError,),
    ),
    "class_map": Loader(
        ".yaml",
        lambda: [b"cat: dog\n'1': bird\n"],
        watched(lambda path: read_class_map(str(path))),
        (ValueError,),
    ),
    "config": Loader(".yaml", lambda: [right.CONFIG], watched(load_config), (ConfigError,)),
    "checkpoint": Loader(".pt", right.weights, watched(load_checkpoint), (CheckpointError,)),
    "checkpoint_parts": Loader(
        ".pt",
        lambda: right.weights()[1:2],
        watched(load_checkpoint),
        (CheckpointError,),
        is_archive=True,
    ),
    "pickle": Loader(
        ".pkl",
        right.pickles,
        watched(read_pickle),
        (CheckpointError,),
        wrong=right.greedy_pickles,
    ),
    # SECURITY.md trusts these two kinds of file, so the Python code that they run is not watched.
    "onnx": Loader(".onnx", right.onnx_models, _exported, (ValueError,)),
    "package": Loader(".pt2", right.packages, _exported, (ValueError,), is_archive=True),
    "request": Loader(
        "", right.requests, watched(lambda path: answer(path.read_bytes())), (Refused,)
    ),
}


@cache
def _contents(name: str) -> list[bytes]:
    return LOADERS[name].contents() + LOADERS[name].wrong()


class _Watch:
    """Records events while a file is read."""

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
    """Returns the watch of this process, because audit hooks cannot be removed."""
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
    """Reads each valid file, so that no import happens later because of an invalid one."""
    Image.init()
    for content in LOADERS[name].contents():
        require(read(name, content, random.Random(0)), f"{name} refuses what is right")
    for content in LOADERS[name].wrong():
        require(not read(name, content, random.Random(0)), f"{name} takes what is wrong")
        require(not _watch().harm, f"did {_watch().harm[:3]}")


def read(name: str, content: bytes, rng: random.Random) -> bool:
    """Returns whether a loader accepted a file.

    Raises:
        Find: the file caused harm, or the loader raised an unexpected error.
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
    """Returns the file with this number for a loader."""
    rng = random.Random(seed)
    content = rng.choice(_contents(name))
    damage = damaged_inside if LOADERS[name].is_archive else damaged
    return damage(content, rng)


def check_file(seed: int, name: str) -> bool:
    """Returns whether the loader accepted the file.

    Raises:
        Find: a check failed.
    """
    _prepare(name)
    content, rng = file_of(seed, name), random.Random(seed)
    before = reset_peak()  # otherwise an earlier peak would hide this one
    taken = read(name, content, rng)
    grown = peak_resident() - before
    require(grown < MEMORY, f"took {grown >> 20} MiB")
    if _watch().harm:  # a late import causes such events too, but only once
        read(name, content, random.Random(seed))
        require(not _watch().harm, f"did {_watch().harm[:3]}")
    return taken
