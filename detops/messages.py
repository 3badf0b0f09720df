# SPDX-License-Identifier: MIT
"""Formatting of values from files for messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

MAX_VALUE_LENGTH = 60  # characters
MAX_BITS = 8 * MAX_VALUE_LENGTH  # of an integer; Python raises for more than 4300 digits


def shown(value: object) -> str:
    """Returns the beginning of a value's repr, however large the value is.

    >>> shown([[1, 2], {"a": "b" * 100}])
    "[[1, 2], {'a': 'bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb..."
    """
    text = "".join(islice(_pieces(value), MAX_VALUE_LENGTH + 1))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."


def _pieces(value: object) -> Iterator[str]:
    """Yields a repr in nonempty pieces that are not much longer than the part that is shown."""
    if isinstance(value, str | bytes):
        yield repr(value[: MAX_VALUE_LENGTH + 1])
    elif isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            if index:
                yield ", "
            yield from _pieces(key)
            yield ": "
            yield from _pieces(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "[" if isinstance(value, list) else "("
        for index, item in enumerate(value):
            if index:
                yield ", "
            yield from _pieces(item)
        yield "]" if isinstance(value, list) else ",)" if len(value) == 1 else ")"
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        yield f"an integer of {value.bit_length()} bits"
    else:
        yield repr(value)
