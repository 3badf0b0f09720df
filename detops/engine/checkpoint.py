# SPDX-License-Identifier: MIT
"""Checkpoints: sealed, written atomically, and loaded without executing code.

A checkpoint is a dict of tensors and plain values. It contains `config` (YAML text), `names` (of
the categories, labels 1..C in order) and `model` (a state dict). Detection needs no more than
these. A checkpoint that training can resume from also contains `training`.

The file is the ZIP archive that `torch.save` writes. Its archive comment holds a seal, the SHA-256
of the archive before sealing. PyTorch does not verify the archive's own checksums and silently
loads changed bits.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from threading import get_ident
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

Checkpoint = dict[str, Any]
MAX_LISTED = 3
SEAL = b"detops sha256 "
ZIP_START, ZIP_END = b"PK\3\4", b"PK\5\6"
ZIP_END_SIZE = 22  # bytes of the end record; its last two are the length of the comment
NO_COMMENT = b"\0\0"
CHUNK_SIZE = 1 << 20


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file that is damaged, or that is not a checkpoint."""


class OutputError(OSError):
    """A file or folder that cannot be written."""


@contextmanager
def writing(path: str | Path, advice: str = "") -> Iterator[None]:
    """Adds the file's path to errors raised while writing it; disk-full errors lack it."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}{advice}") from error


@contextmanager
def replacing(
    path: str | Path, temporary: str | Path | None = None, advice: str = ""
) -> Iterator[IO[bytes]]:
    """Opens a file for writing that replaces `path` once it is completely on disk.

    Args:
        path: always contains the whole old file or the whole new one.
        temporary: path of the file while it is written; by default `path` with `.tmp` appended.
        advice: text to append to the error message.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    # A fixed name, so that the next run overwrites what a killed run leaves behind.
    temporary = path.with_name(f"{path.name}.tmp") if temporary is None else Path(temporary)
    try:
        with writing(path, advice):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def save_checkpoint(
    path: str | Path, checkpoint: Checkpoint, temporary: str | Path | None = None
) -> None:
    """Writes a checkpoint atomically: `path` always contains a whole file, old or new.

    Args:
        path: the file.
        checkpoint: the contents.
        temporary: path of the file while it is written; by default `path` with `.tmp` appended.

    Raises:
        OutputError: the file cannot be written, for example because the disk is full.
    """
    with replacing(path, temporary, "; the previous file is intact") as file:
        sink = _SealedWriter(file)
        # mypy: torch.save is annotated to take a file, but it uses only `write` and `flush`.
        torch.save(checkpoint, sink)  # type: ignore[arg-type]
        sink.seal()


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to disk; a machine crash could otherwise undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _SealedWriter:
    """Forwards an archive to a file and computes its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.tail = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        # Hold back the archive's last two bytes, which the seal replaces.
        tail_size = min(len(view), len(NO_COMMENT))
        pending = self.tail + view[len(view) - tail_size :]
        ready = pending[: -len(NO_COMMENT)] if len(pending) > len(NO_COMMENT) else b""
        # Store the error: if raised here, torch.save's C++ code would replace it with its own.
        if self.error is None:
            try:
                self.file.write(ready)
                self.file.write(view[: len(view) - tail_size])
            except OSError as error:
                self.error = error
        self.tail = pending[-len(NO_COMMENT) :]
        return len(view)

    def flush(self) -> None:
        """Does nothing: the file is flushed after the seal is written."""

    def seal(self) -> None:
        if self.error is not None:
            raise self.error
        if self.tail != NO_COMMENT:
            raise RuntimeError("expected torch.save to write an archive without a comment")
        self.file.write(_seal(self.digest.hexdigest()))


def _seal(digest: str) -> bytes:
    """Returns the end of a sealed file: the length of the comment, then the comment."""
    comment = SEAL + digest.encode()
    return len(comment).to_bytes(2, "little") + comment


SEAL_SIZE = len(_seal(hashlib.sha256().hexdigest()))


def save_weights(
    path: str | Path,
    state: Mapping[str, Tensor],
    config: str,
    names: Sequence[str],
    half: bool = False,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint for detection only.

    Args:
        path: the file.
        state: the model's state dict.
        config: the config that built the model, as YAML.
        names: category names of labels 1..C, in order.
        half: store float32 tensors as float16 if their range allows it. `load_weights` casts them
            back to the model's dtype.
        about: further entries to store in the checkpoint.

    Raises:
        OutputError: the file cannot be written.

    Example:
        >>> text = detops.config.dump_config(detops.config.load_config())
        >>> save_weights("weights.pt", {"w": torch.ones(3)}, text, ["tree"], half=True)
        >>> load_checkpoint("weights.pt")["model"]
        {'w': tensor([1., 1., 1.], dtype=torch.float16)}
    """
    weights = {key: _compact(value.detach().cpu(), half) for key, value in state.items()}
    content = {"config": config, "names": list(names), "model": weights}
    save_checkpoint(path, content | dict(about or {}))


def _compact(value: Tensor, half: bool) -> Tensor:
    # A view would be saved with the whole storage behind it, so clone it.
    value = value.clone(memory_format=torch.contiguous_format)
    fits = value.numel() > 0 and bool(value.abs().amax() < torch.finfo(torch.float16).max)
    return value.half() if half and value.dtype == torch.float32 and fits else value


def is_sealed(path: str | Path) -> bool:
    """Returns whether a file has a seal, valid or not.

    Files written by detops 0.1.0 or by other software have none.
    """
    return _end(Path(path))[len(NO_COMMENT) :].startswith(SEAL)


def verify(path: str | Path) -> None:
    """Detects changed bits and missing parts in a file written by torch.save.

    The seal detects every changed bit. For unsealed files, the archive's checksums are verified,
    which cover only the contents. Files older than PyTorch's archive format have no checksums.

    Raises:
        DamagedCheckpointError: the file has changed since it was written.
    """
    path = Path(path)
    end = _end(path)
    if end[len(NO_COMMENT) :].startswith(SEAL):
        if end != _seal(_digest(path)):
            raise damaged(path, "its SHA-256 does not match")
        return
    with open(path, "rb") as file:
        if file.read(len(ZIP_START)) != ZIP_START:
            return
    if not (end[-ZIP_END_SIZE:].startswith(ZIP_END) and end.endswith(NO_COMMENT)):
        raise damaged(path, "its end is missing or changed")
    try:
        with zipfile.ZipFile(path) as archive:
            corrupt = archive.testzip()
    # zipfile raises errors of many types on a damaged directory.
    except Exception as error:
        raise damaged(path, first_line(error)) from error
    if corrupt is not None:
        raise damaged(path, f"the checksum of {corrupt} is wrong")


def _check_size(path: Path) -> None:
    """Rejects archives that unpack to more bytes than the file: torch.save never compresses."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    # The file is damaged, which `verify` reports, or older than PyTorch's archive format.
    except Exception:
        return
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise damaged(path, "it is compressed")
    if sum(part.file_size for part in parts) > path.stat().st_size:
        raise damaged(path, "its parts are larger than the file")


def _end(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - SEAL_SIZE))
        return file.read()


def _digest(path: Path) -> str:
    """Returns the digest that the file had before it was sealed."""
    digest, rest = hashlib.sha256(), path.stat().st_size - SEAL_SIZE
    with open(path, "rb") as file:
        while rest > 0 and (chunk := file.read(min(CHUNK_SIZE, rest))):
            digest.update(chunk)
            rest -= len(chunk)
    digest.update(NO_COMMENT)
    return digest.hexdigest()


def damaged(path: Path, reason: str) -> DamagedCheckpointError:
    """Returns the error for a file that is damaged or not a checkpoint."""
    return DamagedCheckpointError(
        f"{path}: damaged, or not a checkpoint ({reason[:120]}); copy it again or use another file"
    )


def first_line(error: Exception) -> str:
    """Returns the first line of the error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_file(path: str | Path) -> Any:
    """Loads a torch.save file onto the CPU without executing any code in it.

    Raises:
        CheckpointError: the file is missing.
        DamagedCheckpointError: the file is damaged, or contains more than tensors and plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint file")
    _check_size(path)
    verify(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file can fail in the zip reader, the unpickler or the tensor reader. Each raises its
    # own error types.
    except UnpicklingError as error:
        raise damaged(path, _unpickling_reason(str(error))) from error
    except Exception as error:
        raise damaged(path, first_line(error)) from error


def _unpickling_reason(text: str) -> str:
    """Returns torch.load's reason without its advice to execute the code in the file."""
    unknown = re.search(r"GLOBAL (\S+) was not an allowed global", text)
    return (
        f"it contains {unknown[1]}, which is no tensor or plain value"
        if unknown
        else "not what torch.save writes"
    )


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint of this package.

    Raises:
        CheckpointError: the file is missing, or not a checkpoint of this package.
        DamagedCheckpointError: the file is damaged.

    Example:
        >>> from detops.cli.options import TREE_CROWNS
        >>> checkpoint = load_checkpoint(TREE_CROWNS / "weights.pt")
        >>> checkpoint["names"]
        ['tree']
    """
    checkpoint = read_file(path)
    required = {"config": str, "names": list, "model": Mapping}
    for key, kind in required.items():
        if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get(key), kind):
            raise CheckpointError(f"{path}: not a detops checkpoint: it lacks '{key}'")
    if not all(isinstance(name, str) for name in checkpoint["names"]):
        raise DamagedCheckpointError(f"{path}: damaged: its names are not all strings")
    return dict(checkpoint)


@contextmanager
def limit_parameters(state: Mapping[str, Any], source: str | Path) -> Iterator[None]:
    """Aborts building modules with more parameter elements than the weights have bytes.

    Raises:
        CheckpointError: the modules exceed that limit.
    """
    # Count storages, not tensors: a file may have many views, of any size, of one storage.
    dense = [x for x in state.values() if isinstance(x, Tensor) and x.layout == torch.strided]
    storages = [x.untyped_storage() for x in dense if x.device.type != "meta"]
    budget = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    thread = get_ident()

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal budget
        if parameter is not None and get_ident() == thread:
            budget -= parameter.numel()
            if budget < 0:
                raise OverflowError

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except Exception as error:
        if budget >= 0:
            raise
        reason = "its config requires more weights than it contains"
        raise CheckpointError(f"{source}: {reason}") from error
    finally:
        handle.remove()


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copies a state dict into a model and casts it to the model's dtypes.

    Args:
        model: receives the weights.
        state: must have exactly the model's names and shapes.
        source: where the weights come from, for messages.

    Raises:
        CheckpointError: names or shapes differ; the message lists the first differences.
    """
    expected = model.state_dict()
    differences = [f"lacks {key}" for key in expected if key not in state]
    differences += [f"has unknown {key}" for key in state if key not in expected]
    differences += [
        f"{key} is {_shape_or_type(state[key])}, the model's is {list(value.shape)}"
        for key, value in expected.items()
        if key in state and _shape_or_type(state[key]) != str(list(value.shape))
    ]
    if differences:
        raise CheckpointError(f"{source}: does not fit the model: {list_some(differences)}")
    model.load_state_dict(state)


def _shape_or_type(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def list_some(items: Sequence[str], separator: str = "; ") -> str:
    """Joins the first few items and adds how many more there are."""
    more = len(items) - MAX_LISTED
    rest = f"{separator}and {more} more" if more > 0 else ""
    return separator.join(items[:MAX_LISTED]) + rest
