# SPDX-License-Identifier: MIT
"""The results of a `detops detect` run so far, in a form that survives the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .checkpoint import OutputError, replacing, writing

MERGED, SETTINGS = "detections.jsonl", "run.json"
PART_NAME = "detections.part{}.jsonl"
DETECTION_FIELDS = {"box", "name", "label", "score"}  # required fields of each detection


class Journal:
    """The results in a folder, one line of JSON each, from one process or several.

    During a run, each process appends to its own part. It writes the line of an image after the
    image's other files. A process that is killed therefore loses only the images in progress. At
    the end, the parts are merged into one file, `MERGED`, in the order of the inputs, regardless of
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
        self._locations: dict[str, list[tuple[Path, int]]] = {}
        self._finished = False  # all lines are in WHOLE, and `_locations` is up to date

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
        settings_file, completed = self.folder / SETTINGS, dict[str, str | None]()
        if resume and settings_file.exists():
            saved = _settings(settings_file)
            changed = [key for key in settings if saved.get(key) != settings[key]]
            if changed:
                raise OutputError(
                    f"{settings_file}: the results so far have another "
                    f"{', '.join(changed)}: use the same, or another --output"
                )
        merged, parts = self.folder / MERGED, self._parts()
        if resume:
            completed = self._read()
            self._locations = {
                name: at for name, at in self._locations.items() if name in completed
            }
            self._rewrite([])
        elif parts and (merged.exists() or any(part.stat().st_size > 0 for part in parts)):
            raise OutputError(
                f"{self.folder}: contains the results of an unfinished run: use --resume to "
                f"continue it, or another --output; or remove {self.folder / PART_NAME.format('*')}"
            )
        else:
            with writing(merged):
                merged.unlink(missing_ok=True)
        with replacing(settings_file) as file:
            file.write(json.dumps(settings).encode() + b"\n")
        with writing(self.folder):
            # The run counts as unfinished while this file exists.
            (self.folder / PART_NAME.format(0)).touch()
        return completed

    def append(self, entries: Iterable[dict[str, Any]], process: int = 0) -> None:
        """Appends lines to this process's part."""
        path = self.folder / PART_NAME.format(process)
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
        return sorted(self.folder.glob(PART_NAME.format("*")))

    def _read(self) -> dict[str, str | None]:
        """Locates all lines and returns the drawings of the inputs that are complete."""
        self._locations.clear()
        completed = dict[str, str | None]()
        merged = self.folder / MERGED
        for path in [*([merged] if merged.exists() else []), *self._parts()]:
            offset = 0
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break  # the process was killed while writing this line
                    entry = _entry(line)
                    if entry is None:
                        raise OutputError(f"{path}: line {number} is damaged: remove the line")
                    name, frame = entry["image"], entry.get("frame")
                    is_last = frame is None  # an image, or the last line of a video
                    if frame == 0 or (is_last and "frames" not in entry):
                        self._locations[name] = []
                    self._locations.setdefault(name, []).append((path, offset))
                    if is_last:
                        completed[name] = entry.get("picture")
                    offset += len(line)
        return completed

    def _rewrite(self, order: Sequence[str]) -> None:
        merged = self.folder / MERGED
        locations: dict[str, list[tuple[Path, int]]] = {}
        offset = 0
        with replacing(merged) as file:
            for name, line in self._lines(order):
                locations.setdefault(name, []).append((merged, offset))
                offset += file.write(line)
        with writing(self.folder):
            for part in self._parts():
                part.unlink()
        self._locations = locations

    def _lines(self, order: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        files: dict[Path, BinaryIO] = {}
        try:
            for name in dict.fromkeys([*order, *self._locations]):
                for path, offset in self._locations.get(name, ()):
                    if path not in files:
                        files[path] = open(path, "rb")
                    files[path].seek(offset)
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
        f"{path}: damaged: expected the settings of the results in this folder; use "
        "another --output, or remove the file to continue with the current settings"
    )


def _entry(line: bytes) -> dict[str, Any] | None:
    """Parses the line of an image, a frame or a whole video; returns None if it is damaged."""
    try:
        entry = json.loads(line)
        is_entry = isinstance(entry["image"], str) and ("detections" in entry or "frames" in entry)
        has_fields = all(
            DETECTION_FIELDS <= detection.keys() for detection in entry.get("detections", ())
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return entry if is_entry and has_fields else None
