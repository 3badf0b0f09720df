# SPDX-License-Identifier: MIT
"""Checkpoints: dicts of tensors and plain values, sealed and written atomically, read without code.

Every checkpoint holds `config` (YAML text), `names` (of the categories, labels 1..C in order) and
`model` (a state dict), which is all that detection needs. One that training can go on from holds
`training` too.

A file is what `torch.save` writes, a ZIP archive, with a seal as the archive's comment: the SHA-256
of all that stands before it. PyTorch checks none of its archive's sums, and loads changed bits.
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
NAMED_DIFFERENCES = 3
SEAL = b"detops sha256 "
ZIP_START, ZIP_END = b"PK\3\4", b"PK\5\6"
ZIP_END_SIZE = 22  # of the end record, whose last two bytes are the length of the comment
NO_COMMENT = b"\0\0"
CHUNK = 1 << 20


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that is not what was written, or never was one."""


class OutputError(OSError):
    """A file or folder that cannot be written."""


@contextmanager
def writing(path: str | Path, advice: str = "") -> Iterator[None]:
    """Names the file in the errors of writing it: those of a full disk do not."""
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
    """A file to write, which takes the path's place once all of it is on the disk.

    Args:
        path: holds the old file or the new one, never a part.
        temporary: the name it is written under at first; by default the path's and `.tmp`.
        advice: what the error says beside the cause.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    # One name, so that what a killed run leaves is overwritten by the next.
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
    """Writes a checkpoint so that the path holds the old file or the new one, never a part.

    Args:
        path: the file.
        checkpoint: what it is to hold.
        temporary: the name it is written under at first; by default the path's and `.tmp`.

    Raises:
        OutputError: the file cannot be written, say because the disk is full.
    """
    with replacing(path, temporary, "; what was there before is whole") as file:
        sink = _Sink(file)
        # mypy: only a file's type is in the annotation; what it calls is `write`.
        torch.save(checkpoint, sink)  # type: ignore[arg-type]
        sink.seal()


def sync_folder(folder: Path) -> None:
    """Has the disk know the names in a folder, which a crash of the machine could undo."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class _Sink:
    """Passes an archive on to a file and computes its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest, self.held = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        # The archive's last two bytes wait: the seal has others.
        kept = min(len(view), len(NO_COMMENT))
        held = self.held + view[len(view) - kept :]
        ready = held[: -len(NO_COMMENT)] if len(held) > len(NO_COMMENT) else b""
        # Thrown through torch.save's C++, the error would come out as one of its own.
        if self.error is None:
            try:
                self.file.write(ready)
                self.file.write(view[: len(view) - kept])
            except OSError as error:
                self.error = error
        self.held = held[-len(NO_COMMENT) :]
        return len(view)

    def flush(self) -> None:
        """The file is flushed after the seal."""

    def seal(self) -> None:
        if self.error is not None:
            raise self.error
        if self.held != NO_COMMENT:
            raise RuntimeError(
                "torch.save wrote an archive that ends otherwise than with no comment"
            )
        self.file.write(_seal(self.digest.hexdigest()))


def _seal(digest: str) -> bytes:
    """The end of a sealed file: length of the comment, and the comment."""
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
        names: category names, of labels 1..C in order.
        half: store float32 tensors as float16 where their range allows it; loading gives float32.
        about: what else the file is to say of them.

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
    # clone: a view would be saved with the whole storage behind it.
    value = value.clone(memory_format=torch.contiguous_format)
    fits = value.numel() > 0 and bool(value.abs().amax() < torch.finfo(torch.float16).max)
    return value.half() if half and value.dtype == torch.float32 and fits else value


def is_sealed(path: str | Path) -> bool:
    """Whether a file has a seal, right or wrong; those of 0.1.0 and of others have none."""
    return _end(Path(path))[len(NO_COMMENT) :].startswith(SEAL)


def verify(path: str | Path) -> None:
    """Finds changed bits and missing parts in a file that torch.save has written.

    A sealed file is what was written, to the last bit. Of others the archive's checksums are
    compared, which cover the contents; files from before PyTorch wrote archives have none.

    Raises:
        DamagedCheckpointError: the file is not what was written.
    """
    path = Path(path)
    end = _end(path)
    if end[len(NO_COMMENT) :].startswith(SEAL):
        if end != _seal(_digest(path)):
            raise damaged(path, "its SHA-256 is not the one it was written with")
        return
    with open(path, "rb") as file:
        if file.read(len(ZIP_START)) != ZIP_START:
            return
    if not (end[-ZIP_END_SIZE:].startswith(ZIP_END) and end.endswith(NO_COMMENT)):
        raise damaged(path, "its end is missing or changed")
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    # A damaged directory makes the reader raise errors of many types.
    except Exception as error:
        raise damaged(path, first_line(error)) from error
    if wrong is not None:
        raise damaged(path, f"the checksum of {wrong} in it is wrong")


def _check_size(path: Path) -> None:
    """Refuses an archive of more than its own bytes: torch.save compresses nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    # It is damaged, which `verify` tells, or older than PyTorch's archives.
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
    """Of the file as it was before it was sealed."""
    digest, rest = hashlib.sha256(), path.stat().st_size - SEAL_SIZE
    with open(path, "rb") as file:
        while rest > 0 and (chunk := file.read(min(CHUNK, rest))):
            digest.update(chunk)
            rest -= len(chunk)
    digest.update(NO_COMMENT)
    return digest.hexdigest()


def damaged(path: Path, reason: str) -> DamagedCheckpointError:
    """The error of a file that is not what was written."""
    return DamagedCheckpointError(
        f"{path}: damaged, or not a checkpoint ({reason[:120]}); copy it again or take another"
    )


def first_line(error: Exception) -> str:
    """Of its message, or its type if there is none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_file(path: str | Path) -> Any:
    """What torch.save has written, onto the CPU, without running any code in it.

    Raises:
        CheckpointError: the file is missing.
        DamagedCheckpointError: the file is damaged, or holds more than tensors and plain values.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint file")
    _check_size(path)
    verify(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file fails in the zip reader, the unpickler or the tensor reader, each with errors
    # of its own.
    except UnpicklingError as error:
        raise damaged(path, _unpickling_reason(str(error))) from error
    except Exception as error:
        raise damaged(path, first_line(error)) from error


def _unpickling_reason(text: str) -> str:
    """What torch.load says, without its advice to run the code that is in the file."""
    unknown = re.search(r"GLOBAL (\S+) was not an allowed global", text)
    return (
        f"{unknown[1]} in it is no tensor or plain value"
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
            raise CheckpointError(f"{path}: not a detops checkpoint: no '{key}' in it")
    if not all(isinstance(name, str) for name in checkpoint["names"]):
        raise DamagedCheckpointError(f"{path}: damaged: its names are not all text")
    return dict(checkpoint)


@contextmanager
def as_large_as(state: Mapping[str, Any], source: str | Path) -> Iterator[None]:
    """Ends the making of modules whose parameters have more numbers than the weights have bytes.

    Raises:
        CheckpointError: there would be more.
    """
    # Tensors of a file may be views of one storage, of any size.
    dense = [x for x in state.values() if isinstance(x, Tensor) and x.layout == torch.strided]
    storages = [x.untyped_storage() for x in dense if x.device.type != "meta"]
    left = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    thread = get_ident()

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal left
        if parameter is not None and get_ident() == thread:
            left -= parameter.numel()
            if left < 0:
                raise OverflowError

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    except Exception as error:
        if left >= 0:
            raise
        reason = "its config asks for more than it has weights for"
        raise CheckpointError(f"{source}: {reason}") from error
    finally:
        handle.remove()


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copies a state dict into a model, casting to the model's dtypes.

    Args:
        model: takes the weights.
        state: must have exactly the model's names and shapes.
        source: where the weights come from, for messages.

    Raises:
        CheckpointError: names or shapes differ; the first differences are named.
    """
    expected = model.state_dict()
    differences = [f"lacks {key}" for key in expected if key not in state]
    differences += [f"has unknown {key}" for key in state if key not in expected]
    differences += [
        f"{key} is {_described(state[key])}, the model's is {list(value.shape)}"
        for key, value in expected.items()
        if key in state and _described(state[key]) != str(list(value.shape))
    ]
    if differences:
        raise CheckpointError(f"{source}: does not fit the model: {list_some(differences)}")
    model.load_state_dict(state)


def _described(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def list_some(items: Sequence[str], separator: str = "; ") -> str:
    """The first few, and how many more there are."""
    more = len(items) - NAMED_DIFFERENCES
    rest = f"{separator}and {more} more" if more > 0 else ""
    return separator.join(items[:NAMED_DIFFERENCES]) + rest
