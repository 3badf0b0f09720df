# SPDX-License-Identifier: MIT
"""The command `detops detect`: pictures and videos in, pictures and tables of detections out."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..data import ImageError
from ..distributed import gather_objects, is_main, on_main, rank, shares, world_size
from ..visualize import draw_detections
from .checkpoint import list_some, writing
from .command import check_writable
from .detect import Detector
from .formats import Entry, image_entry, write_crops, write_table, write_yolo
from .journal import Journal
from .progress import counting_progress
from .sources import Source
from .video import VideoWriter, open_video


@dataclass
class Wanted:
    """What `detops detect` is to find, and what it is to write.

    Attributes:
        output: folder for the pictures, and for what is found while it is being found.
        pictures: whether detections are drawn.
        tables: files by kind, see `formats.TABLES`.
        yolo: folder for a text file for each picture.
        crops: folder for a picture of each detection.
        score_threshold: detections below it are left out.
        classes: names of those that are kept; all, if there are none.
        batch: how many images are read at a time; those of one size are detected in together.
        resume: leave out what is in the output folder already.
        drawing: arguments of `draw_detections`.
    """

    output: Path
    pictures: bool = True
    tables: dict[str, Path] = field(default_factory=dict)
    yolo: Path | None = None
    crops: Path | None = None
    score_threshold: float = 0.5
    classes: Sequence[str] = ()
    batch: int = 1
    resume: bool = False
    drawing: dict[str, Any] = field(default_factory=dict)


@dataclass
class Done:
    """What a process has done: counts and seconds."""

    images: int = 0
    failed: int = 0
    reading: float = 0.0
    detecting: float = 0.0
    writing: float = 0.0
    names: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def timing(self, kind: str) -> Iterator[None]:
        """Adds the time that the block takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, kind, getattr(self, kind) + time.perf_counter() - began)


def detect_files(
    make_detector: Callable[[], Detector],
    weights: str,
    sources: Sequence[Source],
    problems: Sequence[ImageError],
    wanted: Wanted,
    console: Console,
    messages: Console,
    complain: Callable[[str], Any],
) -> tuple[int, int, Exception | None]:
    """Detects in images, draws what is found, and writes it down.

    An image that fails does not end the run: it is told of, and the others are worked on. What was
    found is written to the tables however the run ends. Several processes share the images.

    Args:
        make_detector: called once it is known that results can be written.
        weights: what it was made of; for `Wanted.resume`.
        sources: what to detect in; the same in all processes.
        problems: with what was to be a source.
        wanted: what else.
        console: for a line for each image.
        messages: for progress, and a summary.
        complain: called with what is wrong with an image.

    Returns:
        How many images failed, of how many, and an error of one that did; in the main process.

    Raises:
        OutputError: a result cannot be written; see also `Journal.begin`.
        ValueError: the detector has no class of a name that is wanted.
    """
    for path in wanted.tables.values():
        on_main(partial(check_writable, path))
    run = _Run(make_detector(), wanted, console, messages, complain)
    settings = {
        "weights": weights,
        "names": list(run.detector.names),
        "classes": run.classes,
        "score_threshold": wanted.score_threshold,
    }
    done = on_main(lambda: run.journal.begin(settings, wanted.resume))
    again = {source.name for source in sources if source.passes}
    done = {name: picture for name, picture in done.items() if name not in again}
    for problem in problems if is_main() else ():
        run.fail(problem)
    try:
        run.work(sources, done)
    except BaseException:
        if world_size() == 1:
            run.write_tables(sources)
        raise
    run.journal.close()
    together = gather_objects(run.done)
    if not is_main():
        return 0, 0, None
    # Before the tables, which can be made of it by --resume where one cannot be written.
    run.journal.finish([source.name for source in sources])
    run.write_tables(sources)
    failed = sum(each.failed for each in together)
    run.summarize(together, len(done.keys() & {source.name for source in sources}))
    return failed, len(sources) + len(problems), run.last_error


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        detector: Detector,
        wanted: Wanted,
        console: Console,
        messages: Console,
        complain: Callable[[str], Any],
    ) -> None:
        self.detector, self.wanted = detector, wanted
        self.console, self.messages, self.complain = console, messages, complain
        self.classes = _labels(detector.names, wanted.classes)
        self.journal = Journal(wanted.output)
        self.done = Done()
        self.began = time.perf_counter()
        # Not all errors: each keeps the image that it came from.
        self.last_error: Exception | None = None

    def work(self, sources: Sequence[Source], done: Mapping[str, str | None]) -> None:
        """Detects in those that are not done, as far as this process gets them."""
        paths = picture_paths(sources, self.wanted.output, done)
        left = [i for i, source in enumerate(sources) if source.name not in done]
        with counting_progress(self.messages, "detecting") as report:
            for share in shares(len(left), self.wanted.batch):
                group = [left[i] for i in share]
                self._pictures(
                    [(sources[i], paths[i]) for i in group if sources[i].kind == "picture"]
                )
                for i in group:
                    if sources[i].kind != "picture":
                        self._attempt(sources[i].name, self._video, sources[i], paths[i])
                report(share.stop, len(left))

    def fail(self, error: Exception, name: str = "") -> None:
        """Counts and tells of an image that failed."""
        self.done.failed += 1
        self.last_error = error
        text = str(error) or "not enough memory"
        self.complain(text if isinstance(error, ImageError) else f"{name}: {text}")

    def write_tables(self, sources: Sequence[Source]) -> None:
        """Writes the files that have all detections."""
        order = [source.name for source in sources]
        for kind, path in self.wanted.tables.items():
            write_table(kind, path, self.journal.entries(order), order)

    def summarize(self, together: Sequence[Done], resumed: int) -> None:
        """Tells what all processes have done."""
        images = sum(each.images for each in together)
        seconds = time.perf_counter() - self.began
        names = sum((each.names for each in together), Counter[str]())
        lines = [f"{images} images in {seconds:.1f} s"]
        if images:
            kinds = ("reading", "detecting", "writing")
            times = (1000 * sum(getattr(each, k) for each in together) / images for k in kinds)
            parts = [f"{t:.1f} ms {kind}" for kind, t in zip(kinds, times, strict=True)]
            lines[0] += f", {images / seconds:.2f} a second; of each {', '.join(parts)}"
        if resumed:
            lines.append(f"{resumed} were done before")
        found = [f"{count} {name}" for name, count in names.most_common()]
        lines.append(f"found: {list_some(found, ', ')}" if found else "found: nothing")
        self.messages.print("\n".join(lines))

    def _attempt(self, name: str, action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
        # RuntimeError is what PyTorch raises where memory does not suffice.
        except (ImageError, MemoryError, RuntimeError) as error:
            self.fail(error, name)

    def _pictures(self, group: Sequence[tuple[Source, Path]]) -> None:
        with self.done.timing("reading"):
            read = [
                (source.name, path, pixels)
                for source, path in group
                if (pixels := self._attempt(source.name, source.read)) is not None
            ]
        began = time.perf_counter()
        together = self._together([pixels for *_, pixels in read])
        each_took = (time.perf_counter() - began) / max(1, len(read))
        self.done.detecting += each_took * len(read)
        for (name, path, pixels), found in zip(read, together, strict=True):
            took = each_took
            if found is None:
                began = time.perf_counter()
                found = self._attempt(name, self._detect, pixels)
                took += time.perf_counter() - began
                self.done.detecting += time.perf_counter() - began
            if found is None:
                continue
            with self.done.timing("writing"):
                entry = self._attempt(name, self._write, name, path, pixels, found)
                if entry is None:
                    continue
                self.journal.append([entry], rank())
            self._count(found)
            drawn = f", {path}" if self.wanted.pictures else ""
            self.console.print(f"{name}: {len(found['scores'])} found, {1000 * took:.1f} ms{drawn}")

    def _write(self, name: str, path: Path, pixels: Tensor, found: dict[str, Any]) -> Entry:
        """Writes the files that an image has for itself; what the journal has of it."""
        entry = image_entry(name, pixels.shape, found)
        if self.wanted.pictures:
            picture = self._draw(pixels, found)
            with writing(path):
                picture.save(path)
            entry["picture"] = str(path)
        self._write_others(path.stem, pixels, found)
        return entry

    def _write_others(self, stem: str, pixels: Tensor, found: dict[str, Any]) -> None:
        if self.wanted.yolo is not None:
            write_yolo(self.wanted.yolo / f"{stem}.txt", pixels.shape, found)
        if self.wanted.crops is not None:
            write_crops(self.wanted.crops, stem, pixels, found)

    def _video(self, source: Source, path: Path) -> None:
        """Detects in the frames of a video; in those of a camera until Ctrl-C."""
        frames, found, began = 0, 0, time.perf_counter()
        with open_video(source.name) as (rate, pixels):
            with VideoWriter(path, rate) if self.wanted.pictures else nullcontext() as writer:
                with suppress(KeyboardInterrupt) if source.kind == "live" else nullcontext():
                    while group := self._timed_frames(pixels):
                        found += self._frames(source.name, path, frames, group, writer)
                        frames += len(group)
        entry = {"image": source.name, "frames": frames, "frames_per_second": float(rate)}
        self.journal.append([entry | ({"picture": str(path)} if writer else {})], rank())
        took = 1000 * (time.perf_counter() - began) / max(1, frames)
        drawn = f", {path}" if writer else ""
        self.console.print(f"{source.name}: {found} found in {frames} frames, {took:.1f} ms{drawn}")

    def _timed_frames(self, pixels: Iterator[Tensor]) -> list[Tensor]:
        with self.done.timing("reading"):
            return list(islice(pixels, self.wanted.batch))

    def _frames(
        self,
        name: str,
        path: Path,
        first: int,
        group: Sequence[Tensor],
        writer: VideoWriter | None,
    ) -> int:
        """Detects in frames that follow one another; how many objects there are in them."""
        with self.done.timing("detecting"):
            together = [
                self._detect(pixels) if found is None else found
                for pixels, found in zip(group, self._together(group), strict=True)
            ]
        with self.done.timing("writing"):
            entries = []
            for number, (pixels, found) in enumerate(zip(group, together, strict=True), first):
                if writer is not None:
                    writer.add(self._draw(pixels, found, enlarge=False))
                self._write_others(f"{path.stem}_{number:06d}", pixels, found)
                entries.append(image_entry(name, pixels.shape, found) | {"frame": number})
                self._count(found)
            self.journal.append(entries, rank())
        return sum(len(found["names"]) for found in together)

    def _together(self, pixels: Sequence[Tensor]) -> Sequence[dict[str, Any] | None]:
        """What is in several images; None for those that are to be taken one by one."""
        if len(pixels) > 1:
            with suppress(MemoryError, RuntimeError):  # for one of them, or for all at a time
                found = self.detector.detect_batch(pixels, self.wanted.score_threshold)
                return [self._of_wanted_classes(each) for each in found]
        return [None] * len(pixels)

    def _detect(self, pixels: Tensor) -> dict[str, Any]:
        found = self.detector.detect(pixels, self.wanted.score_threshold)
        return self._of_wanted_classes(found)

    def _of_wanted_classes(self, found: dict[str, Any]) -> dict[str, Any]:
        if not self.classes:
            return found
        keep = torch.isin(found["labels"], torch.tensor(self.classes))
        kept = {key: value[keep] for key, value in found.items() if key != "names"}
        names = [
            name for name, is_kept in zip(found["names"], keep.tolist(), strict=True) if is_kept
        ]
        return kept | {"names": names}

    def _draw(self, pixels: Tensor, found: dict[str, Any], **how: Any) -> Any:
        return draw_detections(
            pixels,
            found["boxes"],
            found["scores"],
            found["labels"],
            found["names"] if len(self.detector.names) > 1 else None,
            masks=found.get("masks"),
            keypoints=found.get("keypoints"),
            **self.wanted.drawing,
            **how,
        )

    def _count(self, found: dict[str, Any]) -> None:
        self.done.images += 1
        self.done.names.update(found["names"])


def _labels(names: Sequence[str], wanted: Iterable[str]) -> list[int]:
    """The labels, from 1, of classes by their names, in any case."""
    numbers = {name.casefold(): label for label, name in enumerate(names, 1)}
    unknown = [name for name in wanted if name.casefold() not in numbers]
    if unknown:
        raise ValueError(
            f"--classes: no class {list_some(unknown, ', ')}; there are {list_some(names, ', ')}"
        )
    return sorted(numbers[name.casefold()] for name in wanted)


def picture_paths(
    sources: Sequence[Source], output: Path, done: Mapping[str, str | None]
) -> list[Path]:
    """A file for what is drawn of each: none twice, and none that is a source itself.

    Args:
        sources: what to detect in.
        output: the folder of the files.
        done: what `Journal.begin` gives. Their files stay theirs.
    """

    def key(path: str | Path) -> str:
        # On some file systems capitals are no difference.
        return os.path.realpath(path).casefold()

    # By its name: the folder may have been moved, or be named otherwise than it was.
    kept = {name: output / Path(picture).name for name, picture in done.items() if picture}
    taken = {key(source.name) for source in sources} | {key(path) for path in kept.values()}
    last: Counter[str] = Counter()
    paths = []
    for source in sources:
        if source.name in kept:
            paths.append(kept[source.name])
            continue
        suffix = ".png" if source.kind == "picture" else ".mp4"
        stem = Path(source.name).stem
        path = output / f"{stem}{suffix}"
        while key(path) in taken:
            last[stem] += 1
            path = output / f"{stem}_{last[stem] + 1}{suffix}"
        taken.add(key(path))
        paths.append(path)
    return paths
