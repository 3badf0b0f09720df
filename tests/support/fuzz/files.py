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

from . import contents as valid
from .check import require
from .damage import damaged, damaged_inside
from .server import Rejected, respond

PIXELS = 1_000_000  # limit for images here
MAX_GROWTH = 1 << 30  # bytes that a process may grow by while it reads
# Names of Python's audit events that no file may cause.
HARMFUL_EVENTS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "subprocess.Popen",
)
HARMFUL_EVENTS += (
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "urllib.Request",
    "webbrowser.open",
)
HARMFUL_EVENTS += (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
)
HARMFUL_EVENTS += ("exec", "pty.spawn", "ctypes.dlopen", "os.truncate", "shutil.rmtree")


class Loader(NamedTuple):
    """A loader of one kind of file."""

    suffix: str
    contents: Callable[[], list[bytes]]  # valid ones
    load: Callable[[Path, random.Random], Any]
    errors: tuple[type[Exception], ...]
    is_archive: bool = False
    rejected: Callable[[], list[bytes]] = list  # rejected contents, which are also damaged


def _data(kind: str, location: str = "", **files: bytes) -> Callable[[Path, random.Random], Any]:
    """Returns a loader of a dataset with its file at ``location`` and one image."""

    def load(path: Path, rng: random.Random) -> None:
        root = path.parent
        target = root / (location or path.name)
        for name, content in ({"a.png": valid.image_files()[0]} | files).items():
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
        with _recording():
            dataset = open_dataset(f"{kind}:{root if location else target}", **options)
            for k in range(len(dataset)):
                dataset[k]
            dataset.ground_truth()
            dataset.describe_problems()

    return load


def recorded(call: Callable[[Path], Any]) -> Callable[[Path, random.Random], Any]:
    """Returns a loader that needs only the file."""

    def load(path: Path, _: random.Random) -> Any:
        with _recording():
            return call(path)

    return load


def _exported(path: Path, _: random.Random) -> None:
    detops.export.load(path)


LOADERS: dict[str, Loader] = {
    "image": Loader(
        "",
        valid.image_files,
        recorded(lambda path: load_image(path, max_pixels=PIXELS)),
        (ImageError,),
        rejected=valid.unsupported_image_files,
    ),
    "coco": Loader(".json", lambda: [valid.coco()], _data("coco"), (AnnotationError,)),
    "lvis": Loader(".json", lambda: [valid.coco(valid.LVIS)], _data("lvis"), (AnnotationError,)),
    "voc": Loader(
        ".xml",
        lambda: [valid.VOC],
        _data("voc", "Annotations/a.xml", **{"JPEGImages/a.png": valid.image_files()[0]}),
        (AnnotationError,),
    ),
    "yolo": Loader(
        ".yaml",
        lambda: [valid.YOLO],
        _data(
            "yolo",
            "data.yaml",
            **{"images/train/a.png": valid.image_files()[0], "labels/train/a.txt": valid.LABELS},
        ),
        (AnnotationError,),
    ),
    "yolo_labels": Loader(
        ".txt",
        lambda: [valid.LABELS],
        _data(
            "yolo",
            "labels/train/a.txt",
            **{"images/train/a.png": valid.image_files()[0], "data.yaml": valid.YOLO},
        ),
        (AnnotationError,),
    ),
    "cvat": Loader(".xml", lambda: [valid.CVAT], _data("cvat"), (AnnotationError,)),
    "label_studio": Loader(
        ".json",
        lambda: [json.dumps(valid.LABEL_STUDIO).encode()],
        _data("label-studio"),
        (AnnotationError,),
    ),
    "class_map": Loader(
        ".yaml",
        lambda: [b"cat: dog\n'1': bird\n"],
        recorded(lambda path: read_class_map(str(path))),
        (ValueError,),
    ),
    "config": Loader(".yaml", lambda: [valid.CONFIG], recorded(load_config), (ConfigError,)),
    "checkpoint": Loader(".pt", valid.weights, recorded(load_checkpoint), (CheckpointError,)),
    "checkpoint_parts": Loader(
        ".pt",
        lambda: valid.weights()[1:2],
        recorded(load_checkpoint),
        (CheckpointError,),
        is_archive=True,
    ),
    "pickle": Loader(
        ".pkl",
        valid.pickles,
        recorded(read_pickle),
        (CheckpointError,),
        rejected=valid.greedy_pickles,
    ),
    # SECURITY.md trusts these two kinds of file, so the Python code that they run is not recorded.
    "onnx": Loader(".onnx", valid.onnx_models, _exported, (ValueError,)),
    "package": Loader(".pt2", valid.packages, _exported, (ValueError,), is_archive=True),
    "request": Loader(
        "", valid.requests, recorded(lambda path: respond(path.read_bytes())), (Rejected,)
    ),
}


@cache
def _contents(name: str) -> list[bytes]:
    return LOADERS[name].contents() + LOADERS[name].rejected()


class _EventRecorder:
    """Records events while a file is read."""

    def __init__(self) -> None:
        self.enabled = False
        self.harmful: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.enabled:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE_FLAGS
        if writes or event in HARMFUL_EVENTS:
            self.harmful.append(f"{event} {arguments!r}"[:300])


WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@cache
def _event_recorder() -> _EventRecorder:
    """Returns the recorder of this process, because audit hooks cannot be removed."""
    recorder = _EventRecorder()
    sys.addaudithook(recorder)
    return recorder


@contextmanager
def _recording() -> Iterator[None]:
    recorder = _event_recorder()
    recorder.enabled, recorder.harmful = True, []
    try:
        yield
    finally:
        recorder.enabled = False


@cache
def _prepare(name: str) -> None:
    """Reads each valid file, so that no import happens later because of an invalid one."""
    Image.init()
    for content in LOADERS[name].contents():
        require(read(name, content, random.Random(0)), f"{name} rejects a valid file")
    for content in LOADERS[name].rejected():
        require(not read(name, content, random.Random(0)), f"{name} accepts an invalid file")
        require(not _event_recorder().harmful, f"caused {_event_recorder().harmful[:3]}")


def read(name: str, content: bytes, rng: random.Random) -> bool:
    """Returns whether a loader accepted a file.

    Raises:
        Finding: the file caused harm, or the loader raised an unexpected error.
    """
    loader = LOADERS[name]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "data" / f"file{loader.suffix}"
        path.parent.mkdir()
        path.write_bytes(content)
        accepted = True
        try:
            loader.load(path, rng)
        except loader.errors:
            accepted = False
        except Exception as error:
            require(False, f"{type(error).__name__}: {str(error)[:300]}")
    return accepted


def damaged_file(seed: int, name: str) -> bytes:
    """Returns the file with this number for a loader."""
    rng = random.Random(seed)
    content = rng.choice(_contents(name))
    damage = damaged_inside if LOADERS[name].is_archive else damaged
    return damage(content, rng)


def check_file(seed: int, name: str) -> bool:
    """Returns whether the loader accepted the file.

    Raises:
        Finding: a check failed.
    """
    _prepare(name)
    content, rng = damaged_file(seed, name), random.Random(seed)
    before = reset_peak()  # otherwise an earlier peak would hide this one
    accepted = read(name, content, rng)
    growth = peak_resident() - before
    require(growth < MAX_GROWTH, f"used {growth >> 20} MiB")
    if _event_recorder().harmful:  # a late import causes such events too, but only once
        read(name, content, random.Random(seed))
        require(not _event_recorder().harmful, f"caused {_event_recorder().harmful[:3]}")
    return accepted
