# SPDX-License-Identifier: MIT
"""Validation of the numbers and choices in a request's query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException


class Number(NamedTuple):
    """A number from `low` to `high`; an integer if the default is one."""

    default: float
    low: float
    high: float

    def parse(self, text: str) -> Any:
        """Parses a number; raises ValueError if it is none or out of range."""
        value = type(self.default)(text)
        if not self.low <= value <= self.high:  # also rejects NaN
            raise ValueError
        return value

    @property
    def expected(self) -> str:
        """Describes the valid values."""
        kind = "an integer" if isinstance(self.default, int) else "a number"
        return f"{kind} from {self.low} to {self.high}"


class Choice(NamedTuple):
    """One of several words."""

    default: str
    choices: Sequence[str]

    def parse(self, text: str) -> str:
        """Returns the text if it is one of the words, else raises ValueError."""
        if text not in self.choices:
            raise ValueError
        return text

    @property
    def expected(self) -> str:
        """Describes the valid values."""
        return f"one of {', '.join(self.choices)}"


def read_query(query: QueryParams, **known: Number | Choice) -> dict[str, Any]:
    """Returns the values of a query, with defaults for missing ones.

    Raises:
        HTTPException: 400 if a name is unknown or repeated, or a value is invalid.
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
            values[name] = kind.default if text is None else kind.parse(text)
        except ValueError:
            raise HTTPException(400, f"{name}: expected {kind.expected}, got {text!r}") from None
    return values
