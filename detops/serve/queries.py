# SPDX-License-Identifier: MIT
"""Numbers and choices in a request's query, each against what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException


class Number(NamedTuple):
    """A number from `low` to `high`; a whole one if the default is."""

    default: float
    low: float
    high: float

    def read(self, text: str) -> Any:
        """The number in a text; ValueError where there is none, or it is outside."""
        value = type(self.default)(text)
        if not self.low <= value <= self.high:  # NaN is not either
            raise ValueError
        return value

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.low} to {self.high}"


class Choice(NamedTuple):
    """One of some words."""

    default: str
    among: Sequence[str]

    def read(self, text: str) -> str:
        """The text, if it is one of the words; else ValueError."""
        if text not in self.among:
            raise ValueError
        return text

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        return f"one of {', '.join(self.among)}"


def read_query(query: QueryParams, **known: Number | Choice) -> dict[str, Any]:
    """The values of a query, defaults where it has none.

    Raises:
        HTTPException: 400, it has another name, one twice, or a value that is not taken.
    """
    for name in query:
        if name not in known:
            raise HTTPException(400, f"query: expected {', '.join(known)}, got {name!r}")
        if len(query.getlist(name)) > 1:
            raise HTTPException(400, f"query: expected one {name}, got several")
    values = {}
    for name, kind in known.items():
        text = query.get(name)
        try:
            values[name] = kind.default if text is None else kind.read(text)
        except ValueError:
            raise HTTPException(400, f"{name}: expected {kind.expected}, got {text!r}") from None
    return values
