# SPDX-License-Identifier: MIT
"""The command `detops detect`: detects in images and videos, draws and writes the results."""

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
from ..distributed import distribute_chunks, gather_objects, is_main, on_main, rank, world_size
from ..visualize import draw_detections
from .checkpoint import list_some, writing
from .command import check_writable
from .detect import Detector
from .formats import Entry, image_entry, write_crops, write_table, write_yolo
from .journal import Journal
from .progress import counting_progress
from .sources import Source
from .video import VideoWriter, open_video

PNG_LEVEL = 1  # the default, 6, takes 3.5 times as long for files a tenth smaller


@dataclass
class Options:
    """Options of `detops detect`.

    Attributes:
        output: folder for the drawn images and for the journal of the run.
        draw_images: whether to draw detections.
        tables: files by kind, see `formats.TABLES`.
        yolo: folder for one text file per image.
        crops: folder for one image per detection.
        score_threshold: detections below it are dropped.
        classes: names of the classes to keep; empty keeps all.
        batch: number of images read at a time; those of the same size run together.
        resume: skip inputs that are already done in the output folder.
        draw_options: arguments of `draw_detections`.
    """

    output: Path
    draw_images: bool = True
    tables: dict[str, Path] = field(default_factory=dict)
    yolo: Path | None = None
    crops: Path | None = None
    score_threshold: float = 0.5
    classes: Sequence[str] = ()
    batch: int = 1
    resume: bool = False
    draw_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stats:
    """Statistics of one process: counts and seconds."""

    images: int = 0
    failed: int = 0
    reading: float = 0.0
    detecting: float = 0.0
    writing: float = 0.0
    names: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def timing(self, kind: str) -> Iterator[None]:
        """Adds the duration of the block to the given kind."""
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
    options: Options,
    console: Console,
    messages: Console,
    report_failure: Callable[[str], Any],
) -> tuple[int, int, Exception | None]:
    """Detects objects in images and videos, draws them and writes them to files.

    A failed image is reported and the run continues. If the run ends early, a single process still
    writes the tables. Several processes divide the images among them.

    Args:
        make_detector: called after the check that the tables can be written.
        weights: identifies the detector's weights, which must be the same for `Options.resume`.
        sources: the inputs; the same in all processes.
        problems: errors of inputs that could not become sources.
        options: see `Options`.
        console: for one line per image.
        messages: for progress and a summary.
        report_failure: called with a description of each failed image.

    Returns:
        In the main process, the number of failed images, the total number, and the error of a
        failed image.

    Raises:
        OutputError: a result cannot be written; see also `Journal.begin`.
        ValueError: a name in `options.classes` is not a class of the detector.
    """
    for path in options.tables.values():
        on_main(partial(check_writable, path))
    run = _Run(make_detector(), options, console, messages, report_failure)
    settings = {
        "weights": weights,
        "names": list(run.detector.names),
        "classes": run.classes,
        "score_threshold": options.score_threshold,
    }
    completed = on_main(lambda: run.journal.begin(settings, options.resume))
    transient = {source.name for source in sources if source.is_transient}
    completed = {name: drawing for name, drawing in completed.items() if name not in transient}
    for problem in problems if is_main() else ():
        run.record_failure(problem)
    try:
        run.process_sources(sources, completed)
    except BaseException:
        if world_size() == 1:
            run.write_tables(sources)
        raise
    run.journal.close()
    all_stats = gather_objects(run.stats)
    if not is_main():
        return 0, 0, None
    # Finish the journal first: if a table cannot be written, --resume rebuilds it from the journal.
    run.journal.finish([source.name for source in sources])
    run.write_tables(sources)
    failed = sum(each.failed for each in all_stats)
    run.summarize(all_stats, len(completed.keys() & {source.name for source in sources}))
    return failed, len(sources) + len(problems), run.last_error


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        detector: Detector,
        options: Options,
        console: Console,
        messages: Console,
        report_failure: Callable[[str], Any],
    ) -> None:
        self.detector, self.options = detector, options
        self.console, self.messages, self.report_failure = console, messages, report_failure
        self.classes = _class_labels(detector.names, options.classes)
        self.journal = Journal(options.output)
        self.stats = Stats()
        self.began = time.perf_counter()
        # Only the last error, because each one keeps its image in memory.
        self.last_error: Exception | None = None

    def process_sources(
        self, sources: Sequence[Source], completed: Mapping[str, str | None]
    ) -> None:
        """Processes the sources that are not done and that fall to this process."""
        paths = drawing_paths(sources, self.options.output, completed)
        remaining = [i for i, source in enumerate(sources) if source.name not in completed]
        with counting_progress(self.messages, "detecting") as report:
            for chunk in distribute_chunks(len(remaining), self.options.batch):
                group = [remaining[i] for i in chunk]
                self._process_images(
                    [(sources[i], paths[i]) for i in group if sources[i].kind == "image"]
                )
                for i in group:
                    if sources[i].kind != "image":
                        self._try(sources[i].name, self._process_video, sources[i], paths[i])
                report(chunk.stop, len(remaining))

    def record_failure(self, error: Exception, name: str = "") -> None:
        """Records and reports a failed image."""
        self.stats.failed += 1
        self.last_error = error
        text = str(error) or "not enough memory"
        self.report_failure(text if isinstance(error, ImageError) else f"{name}: {text}")

    def write_tables(self, sources: Sequence[Source]) -> None:
        """Writes the files that list all detections."""
        order = [source.name for source in sources]
        for kind, path in self.options.tables.items():
            write_table(kind, path, self.journal.entries(order), order)

    def summarize(self, all_stats: Sequence[Stats], resumed: int) -> None:
        """Prints a summary over all processes."""
        images = sum(each.images for each in all_stats)
        if not images and not resumed:
            return  # each failure is reported already
        seconds = time.perf_counter() - self.began
        names = sum((each.names for each in all_stats), Counter[str]())
        lines = [f"{images} images in {seconds:.1f} s"]
        if images:
            kinds = ("reading", "detecting", "writing")
            times = (1000 * sum(getattr(each, k) for each in all_stats) / images for k in kinds)
            parts = [f"{t:.1f} ms {kind}" for kind, t in zip(kinds, times, strict=True)]
            lines[0] += f", {images / seconds:.2f} images/s; per image {', '.join(parts)}"
        if resumed:
            lines.append(f"{resumed} were already done")
        found = [f"{count} {name}" for name, count in names.most_common()]
        lines.append(f"found: {list_some(found, ', ')}" if found else "found: nothing")
        self.messages.print("\n".join(lines))

    def _try(self, name: str, action: Callable[..., Any], *args: Any) -> Any:
        try:
            return action(*args)
        # PyTorch raises RuntimeError if it cannot allocate memory.
        except (ImageError, MemoryError, RuntimeError) as error:
            self.record_failure(error, name)

    def _process_images(self, group: Sequence[tuple[Source, Path]]) -> None:
        with self.stats.timing("reading"):
            read = [
                (source.name, path, pixels)
                for source, path in group
                if (pixels := self._try(source.name, source.read)) is not None
            ]
        began = time.perf_counter()
        results = self._detect_batch([pixels for *_, pixels in read])
        elapsed_each = (time.perf_counter() - began) / max(1, len(read))
        self.stats.detecting += elapsed_each * len(read)
        for (name, path, pixels), found in zip(read, results, strict=True):
            elapsed = elapsed_each
            if found is None:
                began = time.perf_counter()
                found = self._try(name, self._detect, pixels)
                elapsed += time.perf_counter() - began
                self.stats.detecting += time.perf_counter() - began
            if found is None:
                continue
            with self.stats.timing("writing"):
                entry = self._try(name, self._write, name, path, pixels, found)
                if entry is None:
                    continue
                self.journal.append([entry], rank())
            self._count(found)
            drawn = f", {path}" if self.options.draw_images else ""
            self.console.print(
                f"{name}: {len(found['scores'])} found, {1000 * elapsed:.1f} ms{drawn}"
            )

    def _write(self, name: str, path: Path, pixels: Tensor, found: dict[str, Any]) -> Entry:
        """Writes the files of an image and returns its journal entry."""
        entry = image_entry(name, pixels.shape, found)
        if self.options.draw_images:
            drawing = self._draw(pixels, found)
            with writing(path):
                drawing.save(path, compress_level=PNG_LEVEL)
            entry["picture"] = str(path)
        self._write_yolo_and_crops(path.stem, pixels, found)
        return entry

    def _write_yolo_and_crops(self, stem: str, pixels: Tensor, found: dict[str, Any]) -> None:
        if self.options.yolo is not None:
            write_yolo(self.options.yolo / f"{stem}.txt", pixels.shape, found)
        if self.options.crops is not None:
            write_crops(self.options.crops, stem, pixels, found)

    def _process_video(self, source: Source, path: Path) -> None:
        """Detects objects in the frames of a video, or of a camera until Ctrl-C."""
        frames, found, began = 0, 0, time.perf_counter()
        with open_video(source.name) as (rate, pixels):
            with VideoWriter(path, rate) if self.options.draw_images else nullcontext() as writer:
                with suppress(KeyboardInterrupt) if source.kind == "live" else nullcontext():
                    while group := self._read_frames(pixels):
                        found += self._process_frames(source.name, path, frames, group, writer)
                        frames += len(group)
        entry = {"image": source.name, "frames": frames, "frames_per_second": float(rate)}
        self.journal.append([entry | ({"picture": str(path)} if writer else {})], rank())
        milliseconds = 1000 * (time.perf_counter() - began) / max(1, frames)
        drawn = f", {path}" if writer else ""
        self.console.print(
            f"{source.name}: {found} found in {frames} frames, {milliseconds:.1f} ms{drawn}"
        )

    def _read_frames(self, pixels: Iterator[Tensor]) -> list[Tensor]:
        with self.stats.timing("reading"):
            return list(islice(pixels, self.options.batch))

    def _process_frames(
        self,
        name: str,
        path: Path,
        first: int,
        group: Sequence[Tensor],
        writer: VideoWriter | None,
    ) -> int:
        """Detects objects in consecutive frames and returns how many there are."""
        with self.stats.timing("detecting"):
            results = [
                self._detect(pixels) if found is None else found
                for pixels, found in zip(group, self._detect_batch(group), strict=True)
            ]
        with self.stats.timing("writing"):
            entries = []
            for number, (pixels, found) in enumerate(zip(group, results, strict=True), first):
                if writer is not None:
                    writer.add(self._draw(pixels, found, enlarge=False))
                self._write_yolo_and_crops(f"{path.stem}_{number:06d}", pixels, found)
                entries.append(image_entry(name, pixels.shape, found) | {"frame": number})
                self._count(found)
            self.journal.append(entries, rank())
        return sum(len(found["names"]) for found in results)

    def _detect_batch(self, pixels: Sequence[Tensor]) -> Sequence[dict[str, Any] | None]:
        """Detects objects in several images at once; returns None for those to run one by one."""
        if len(pixels) > 1:
            with suppress(MemoryError, RuntimeError):  # one image may fail, or all together
                found = self.detector.detect_batch(pixels, self.options.score_threshold)
                return [self._filter_classes(each) for each in found]
        return [None] * len(pixels)

    def _detect(self, pixels: Tensor) -> dict[str, Any]:
        found = self.detector.detect(pixels, self.options.score_threshold)
        return self._filter_classes(found)

    def _filter_classes(self, found: dict[str, Any]) -> dict[str, Any]:
        if not self.classes:
            return found
        keep = torch.isin(found["labels"], torch.tensor(self.classes))
        kept = {key: value[keep] for key, value in found.items() if key != "names"}
        names = [
            name for name, is_kept in zip(found["names"], keep.tolist(), strict=True) if is_kept
        ]
        return kept | {"names": names}

    def _draw(self, pixels: Tensor, found: dict[str, Any], **overrides: Any) -> Any:
        return draw_detections(
            pixels,
            found["boxes"],
            found["scores"],
            found["labels"],
            found["names"] if len(self.detector.names) > 1 else None,
            masks=found.get("masks"),
            keypoints=found.get("keypoints"),
            **self.options.draw_options,
            **overrides,
        )

    def _count(self, found: dict[str, Any]) -> None:
        self.stats.images += 1
        self.stats.names.update(found["names"])


def _class_labels(names: Sequence[str], chosen: Iterable[str]) -> list[int]:
    """Returns the labels, from 1, of class names in any case."""
    labels = {name.casefold(): label for label, name in enumerate(names, 1)}
    unknown = [name for name in chosen if name.casefold() not in labels]
    if unknown:
        raise ValueError(
            f"--classes: no class {list_some(unknown, ', ')}; there are {list_some(names, ', ')}"
        )
    return sorted(labels[name.casefold()] for name in chosen)


def drawing_paths(
    sources: Sequence[Source], output: Path, completed: Mapping[str, str | None]
) -> list[Path]:
    """Chooses a file for the drawing of each source, distinct from all others and from the sources.

    Args:
        sources: the inputs.
        output: folder of the drawings.
        completed: result of `Journal.begin`. Sources listed there keep their files.
    """

    def key(path: str | Path) -> str:
        # Some file systems ignore case.
        return os.path.realpath(path).casefold()

    # Use only the file's name: the folder may have been moved, or be given by another path.
    kept = {name: output / Path(drawing).name for name, drawing in completed.items() if drawing}
    used = {key(source.name) for source in sources} | {key(path) for path in kept.values()}
    last: Counter[str] = Counter()
    paths = []
    for source in sources:
        if source.name in kept:
            paths.append(kept[source.name])
            continue
        suffix = ".png" if source.kind == "image" else ".mp4"
        stem = Path(source.name).stem
        path = output / f"{stem}{suffix}"
        while key(path) in used:
            last[stem] += 1
            path = output / f"{stem}_{last[stem] + 1}{suffix}"
        used.add(key(path))
        paths.append(path)
    return paths
