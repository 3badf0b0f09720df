# SPDX-License-Identifier: MIT
"""Pickles of NumPy arrays, as in detectron2's model zoo, read without executing their code.

A pickle is a program that calls functions by name. This reader defines only a handful of names and
implements them itself: the pickle never gets a function of NumPy or Python.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from .checkpoint import ZIP_START, damaged, first_line


def is_pickle(path: str | Path) -> bool:
    """Returns whether the file is a .pkl that is not a ZIP archive."""
    path = Path(path)
    if path.suffix != ".pkl" or not path.is_file():
        return False
    with open(path, "rb") as file:  # torch.save may have written a file with this suffix
        return file.read(len(ZIP_START)) != ZIP_START


def read_pickle(path: str | Path) -> Any:
    """Reads a pickle of numeric arrays, dicts, lists and plain values.

    Raises:
        DamagedCheckpointError: the file is damaged, or contains anything else.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            reader = _Unpickler(file, path.stat().st_size)
            return reader.plain(reader.load())
    # A damaged pickle may call anything with any arguments, and nest arbitrarily deep.
    except Exception as error:
        raise damaged(path, first_line(error)) from error


class _Dtype:
    """Placeholder for a numpy.dtype."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]

    def read(self) -> np.dtype:
        order: Any = _text(self.order)
        dtype = np.dtype(_text(self.name)).newbyteorder(order)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"expected an array of numbers, got one of {dtype}")
        return dtype


class _Array:
    """Placeholder for a numpy.ndarray whose contents come later in the pickle."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: tuple) -> None:
        self.state = state

    def read(self) -> np.ndarray:
        _, shape, dtype, by_column, data = self.state
        data = memoryview(data.encode("latin1") if isinstance(data, str) else data)
        order: Any = "F" if by_column else "C"
        array: np.ndarray = np.ndarray(shape, dtype.read(), data, order=order)
        if array.nbytes != data.nbytes:
            raise pickle.UnpicklingError(
                f"expected {array.nbytes} bytes of an array, got {data.nbytes}"
            )
        # Copy to native byte order and writable memory.
        return array.astype(array.dtype.newbyteorder("="))


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = None, shape, dtype, order == "F", data
    return array


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError("expected bytes as latin1, got another encoding")
    return text.encode(encoding)


def _no_bytes() -> bytes:
    return b""


def _ordered(items: Sequence[tuple[Any, Any]] = ()) -> OrderedDict:
    return OrderedDict((_key(key), value) for key, value in items)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise pickle.UnpicklingError(f"expected text, got {type(value).__name__}")
    return value


def _key(key: Any) -> Any:
    # Tuples are rejected: the time to hash nested pairs doubles with each level.
    return key if isinstance(key, int) else _text(key)


ALLOWED_GLOBALS: Mapping[tuple[str, str], Callable] = {
    ("collections", "OrderedDict"): _ordered,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


# The Python unpickler is as fast on arrays as the one in C. The latter allocates whatever size a
# nine-byte opcode claims.
class _Unpickler(pickle._Unpickler):  # type: ignore[misc]
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    for _opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
        del dispatch[_opcode[0]]

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin1")  # Python 2 wrote bytes as text
        # Byte budget: the data of arrays and the arguments of calls each occur in the file once.
        self.budget = 2 * size
        self.converted: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns the implementation of a name."""
        key = (module.replace("numpy._core", "numpy.core"), name)
        if key not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(
                f"expected numpy arrays and plain values, got {module}.{name}"
            )

        # A pickle can modify the objects that it gets, so give it only this new function.
        def call(*arguments: Any) -> Any:
            self._spend(sum(len(each) for each in arguments if isinstance(each, Sized)))
            return ALLOWED_GLOBALS[key](*arguments)

        return call

    def plain(self, value: Any) -> Any:
        """Returns a value with all placeholders in it replaced by arrays."""
        if not isinstance(value, _Array | Mapping):
            return value
        if id(value) not in self.converted:
            if isinstance(value, _Array):
                self._spend(len(value.state[-1]))
                self.converted[id(value)] = value.read()
            else:
                self.converted[id(value)] = {key: self.plain(item) for key, item in value.items()}
        return self.converted[id(value)]

    def _spend(self, bytes: int) -> None:
        self.budget -= bytes
        if self.budget < 0:
            raise pickle.UnpicklingError("its contents are larger than the file")

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][_key(key)] = value

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch |= {
        pickle.DICT[0]: load_dict,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }
