# SPDX-License-Identifier: MIT
"""What a run of `detops detect` has found so far, in a form that outlives the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .checkpoint import OutputError, replacing, writing

WHOLE, SETTINGS = "detections.jsonl", "run.json"
PART = "detections.part{}.jsonl"
FOUND = {"box", "name", "label", "score"}  # what each detection has at least


class Journal:
    """The results in a folder, a line of JSON each, of one process or of several.

    While a run is going on, each process appends to a part of its own. A line is written when all
    else of its picture is, so that a process that is killed loses no more than the pictures at
    work. When all is done the parts are brought into one file, `WHOLE`, in the order of the
    inputs, whichever process had which.

    A video has a line for each frame, and one at its end that counts them; without that one it is
    begun anew.

    Args:
        folder: where the results are, made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._part: BinaryIO | None = None
        # Where the lines of each input are: of a picture one, of a video one a frame.
        self._places: dict[str, list[tuple[Path, int]]] = {}
        self._finished = False  # all lines are in WHOLE, at the places that are known

    def begin(self, settings: dict[str, Any], resume: bool) -> dict[str, str | None]:
        """Readies the folder for a run; called by one process, before any appends.

        Args:
            settings: what the results depend on, beside the inputs.
            resume: go on from what is there.

        Returns:
            The inputs that are done, by name, and the file that was drawn of each, if one was.

        Raises:
            OutputError: the folder cannot be written to; there is what a run that did not end has
                found, and it is not to be resumed from; it was found with other settings; or
                those, or a line, are damaged.
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
            # Until it goes the run has not ended.
            (self.folder / PART.format(0)).touch()
        return done

    def append(self, entries: Iterable[dict[str, Any]], process: int = 0) -> None:
        """Adds lines to the process's own part."""
        path = self.folder / PART.format(process)
        with writing(path):
            if self._part is None:
                # Unbuffered: what was written stays when the process is killed.
                self._part = open(path, "ab", buffering=0)
            lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
            while lines:
                lines = lines[self._part.write(lines) :]

    def entries(self, order: Sequence[str]) -> Iterator[dict[str, Any]]:
        """All that is found, inputs in this order, and what is of none of them last."""
        if not self._finished:
            self._read()
        for _, line in self._lines(order):
            yield json.loads(line)

    def finish(self, order: Sequence[str]) -> None:
        """Makes one file of the parts, by one process; the others have closed theirs."""
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
        """Finds where all lines are; what is drawn of the inputs that have all of theirs."""
        self._places.clear()
        done = dict[str, str | None]()
        whole = self.folder / WHOLE
        for path in [*([whole] if whole.exists() else []), *self._parts()]:
            place = 0
            with open(path, "rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        break  # what a process was writing when it was killed
                    entry = _entry(line)
                    if entry is None:
                        raise OutputError(f"{path}: line {number} is damaged: remove the line")
                    name, frame = entry["image"], entry.get("frame")
                    ends = frame is None  # a picture, or the frames of a video
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
    """What results were found with."""
    try:
        settings = json.loads(path.read_bytes())
        if isinstance(settings, dict):
            return settings
    except ValueError:  # no JSON, or no UTF-8
        pass
    raise OutputError(
        f"{path}: damaged: expected the settings that the results in this folder were found with; "
        "give another --output, or remove the file to go on with the settings of now"
    )


def _entry(line: bytes) -> dict[str, Any] | None:
    """What a line says of a picture, a frame or a whole video; None if it is damaged."""
    try:
        entry = json.loads(line)
        whole = isinstance(entry["image"], str) and ("detections" in entry or "frames" in entry)
        found = all(FOUND <= detection.keys() for detection in entry.get("detections", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return entry if whole and found else None
