# SPDX-License-Identifier: MIT
"""Pickles of numpy arrays, as detectron2's model zoo has them, read without running their code.

A pickle is a program that names functions and calls them. Here a handful of names have a meaning,
and it is this file's own: none of numpy's or Python's functions is handed to the pickle.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import ZIP_START, damaged, first_line


def is_pickle(path: str | Path) -> bool:
    """Whether a file is told by its name to be a pickle, and does not begin as an archive."""
    path = Path(path)
    if path.suffix != ".pkl" or not path.is_file():
        return False
    with open(path, "rb") as file:  # torch.save may have written to such a name
        return file.read(len(ZIP_START)) != ZIP_START


def read_pickle(path: str | Path) -> Any:
    """What a pickle holds: arrays of numbers, dicts, lists and plain values.

    Raises:
        DamagedCheckpointError: the file is damaged, or holds anything else.
    """
    try:
        with open(path, "rb") as file:
            # Python 2 wrote bytes as text.
            return _plain(_Unpickler(file, encoding="latin1").load())
    # A damaged pickle may call anything with anything, and nest as deep as it likes.
    except Exception as error:
        raise damaged(Path(path), first_line(error)) from error


class _Dtype:
    """Stands for a numpy.dtype."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]

    def read(self) -> np.dtype:
        order: Any = self.order
        dtype = np.dtype(str(self.name)).newbyteorder(order)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"expected an array of numbers, got one of {dtype}")
        return dtype


class _Array:
    """Stands for a numpy.ndarray whose contents come later in the pickle."""

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, by_column, data = state
        self.value = _array(data, dtype, shape, "F" if by_column else "C")


def _array(data: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    data = memoryview(data.encode("latin1") if isinstance(data, str) else data)
    array: np.ndarray = np.ndarray(shape, dtype.read(), data, order=order)
    if array.nbytes != data.nbytes:
        raise pickle.UnpicklingError(
            f"expected {array.nbytes} bytes of an array, got {data.nbytes}"
        )
    # A copy: native order of bytes, memory that may be written to.
    return array.astype(array.dtype.newbyteorder("="))


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"expected bytes as latin1, got {encoding!r}")
    return text.encode(encoding)


def _no_bytes() -> bytes:
    return b""


MEANINGS: Mapping[tuple[str, str], Callable] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for."""
        key = (module.replace("numpy._core", "numpy.core"), name)
        if key not in MEANINGS:
            raise pickle.UnpicklingError(
                f"expected numpy arrays and plain values, got {module}.{name}"
            )
        # A pickle can change what it is given: this function, nothing else is.
        return lambda *arguments: MEANINGS[key](*arguments)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
