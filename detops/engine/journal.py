# SPDX-License-Identifier: MIT
"""The results of a `detops detect` run so far, in a form that survives the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .checkpoint import OutputError, replacing, writing

WHOLE, SETTINGS = "detections.jsonl", "run.json"
PART = "detections.part{}.jsonl"
FOUND = {"box", "name", "label", "score"}  # required fields of each detection


class Journal:
    """The results in a folder, one line of JSON each, from one process or several.

    During a run, each process appends to its own part. It writes the line of an image after the
    image's other files. A process that is killed therefore loses only the images in progress. At
    the end, the parts are merged into one file, `WHOLE`, in the order of the inputs, regardless of
    process.

    A video has one line per frame and a last line with the number of frames. If the last line is
    missing, the video is processed again from its start.

    Args:
        folder: folder of the results, created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._part: BinaryIO | None = None
        # (file, offset) of each input's lines: one for an image, several for a video.
        self._places: dict[str, list[tuple[Path, int]]] = {}
        self._finished = False  # all lines are in WHOLE, and `_places` is up to date

    def begin(self, settings: dict[str, Any], resume: bool) -> dict[str, str | None]:
        """Prepares the folder for a run; called by one process before any of them appends.

        Args:
            settings: everything that the results depend on, except the inputs.
            resume: continue from the existing results.

        Returns:
            The inputs that are done, by name, each with the file of its drawing, if it has one.

        Raises:
            OutputError: the folder is not writable; it contains the results of an unfinished run
                and `resume` is not set; the results were found with other settings; or the settings
                or a line are damaged.
        """
        self._finished = False
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        told, done = self.folder / SETTINGS, dict[str, str | None]()
        if resume and told.exists():
            before = _settings(told)
            other = [key for key in settings if before.get(key) != settings[key]]
            if other:
                raise OutputError(
                    f"{told}: what was found before was found with another "
                    f"{', '.join(other)}: give the same, or another --output"
                )
        whole, parts = self.folder / WHOLE, self._parts()
        if resume:
            done = self._read()
            self._places = {name: at for name, at in self._places.items() if name in done}
            self._rewrite([])
        elif parts and (whole.exists() or any(part.stat().st_size > 0 for part in parts)):
            raise OutputError(
                f"{self.folder}: has the results of a run that did not end: give --resume to go on "
                f"from them, or another --output; or remove {self.folder / PART.format('*')}"
            )
        else:
            with writing(whole):
                whole.unlink(missing_ok=True)
        with replacing(told) as file:
            file.write(json.dumps(settings).encode() + b"\n")
        with writing(self.folder):
            # The run counts as unfinished while this file exists.
            (self.folder / PART.format(0)).touch()
        return done

    def append(self, entries: Iterable[dict[str, Any]], process: int = 0) -> None:
        """Appends lines to this process's part."""
        path = self.folder / PART.format(process)
        with writing(path):
            if self._part is None:
                # Unbuffered, so that written lines survive if the process is killed.
                self._part = open(path, "ab", buffering=0)
            lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
            while lines:
                lines = lines[self._part.write(lines) :]

    def entries(self, order: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields all entries in the order of the inputs, then those of other inputs."""
        if not self._finished:
            self._read()
        for _, line in self._lines(order):
            yield json.loads(line)

    def finish(self, order: Sequence[str]) -> None:
        """Merges the parts into one file; called by one process after all have closed theirs."""
        self._read()
        self._rewrite(order)
        self._finished = True

    def close(self) -> None:
        """Closes this process's part."""
        if self._part is not None:
            self._part.close()
            self._part = None

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob(PART.format("*")))

    def _read(self) -> dict[str, str | None]:
        """Locates all lines and returns the drawings of the inputs that are complete."""
        self._places.clear()
        done = dict[str, str | None]()
        whole = self.folder / WHOLE
        for path in [*([whole] if whole.exists() else []), *self._parts()]:
            place = 0
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break  # the process was killed while writing this line
                    entry = _entry(line)
                    if entry is None:
                        raise OutputError(f"{path}: line {number} is damaged: remove the line")
                    name, frame = entry["image"], entry.get("frame")
                    ends = frame is None  # an image, or the last line of a video
                    if frame == 0 or (ends and "frames" not in entry):
                        self._places[name] = []
                    self._places.setdefault(name, []).append((path, place))
                    if ends:
                        done[name] = entry.get("picture")
                    place += len(line)
        return done

    def _rewrite(self, order: Sequence[str]) -> None:
        whole = self.folder / WHOLE
        places: dict[str, list[tuple[Path, int]]] = {}
        place = 0
        with replacing(whole) as file:
            for name, line in self._lines(order):
                places.setdefault(name, []).append((whole, place))
                place += file.write(line)
        with writing(self.folder):
            for part in self._parts():
                part.unlink()
        self._places = places

    def _lines(self, order: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        files: dict[Path, BinaryIO] = {}
        try:
            for name in dict.fromkeys([*order, *self._places]):
                for path, place in self._places.get(name, ()):
                    if path not in files:
                        files[path] = open(path, "rb")
                    files[path].seek(place)
                    yield name, files[path].readline()
        finally:
            for file in files.values():
                file.close()


def _settings(path: Path) -> dict[str, Any]:
    """Reads the settings that the existing results were found with."""
    try:
        settings = json.loads(path.read_bytes())
        if isinstance(settings, dict):
            return settings
    except ValueError:  # not JSON, or not UTF-8
        pass
    raise OutputError(
        f"{path}: damaged: expected the settings that the results in this folder were found with; "
        "give another --output, or remove the file to go on with the settings of now"
    )


def _entry(line: bytes) -> dict[str, Any] | None:
    """Parses the line of an image, a frame or a whole video; returns None if it is damaged."""
    try:
        entry = json.loads(line)
        whole = isinstance(entry["image"], str) and ("detections" in entry or "frames" in entry)
        found = all(FOUND <= detection.keys() for detection in entry.get("detections", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return entry if whole and found else None
