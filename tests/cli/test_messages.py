# SPDX-License-Identifier: MIT
"""Values from files in messages."""

import doctest

import pytest

from detops import messages
from detops.messages import MAX_VALUE_LENGTH, shown


@pytest.mark.parametrize(
    "value",
    [None, True, -3, 1.5, "a'b", b"x", [], {}, (), (1,), (1, 2), [[1, "a"], {"b": (2.5, None)}]],
)
def test_short_value_is_shown_as_its_repr(value):
    assert shown(value) == repr(value)


def _nested(item, times):
    for _ in range(times):
        item = [item] * 10
    return item


@pytest.mark.parametrize(
    "value",
    [_nested("lol", 64), _nested({}, 200), ["", 1] * 99, {"a": {"b" * 99: 1}}, "x" * 10**9],
)
def test_long_value_is_truncated(value):
    text = shown(value)
    assert len(text) == MAX_VALUE_LENGTH + 3 and text.endswith("...")


def test_huge_number_is_shown_by_its_bit_count():
    assert shown([10**5000]) == "[an integer of 16610 bits]"


def test_docstring_examples_of_messages_pass():
    assert doctest.testmod(messages).attempted > 0
    assert doctest.testmod(messages).failed == 0
