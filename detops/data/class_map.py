# SPDX-License-Identifier: MIT
"""Renaming of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..messages import shown

ClassMap = Mapping[str, str]


def read_class_map(text: str) -> dict[str, str]:
    """Parses a class map from the command line: new names by old ones.

    Args:
        text: "Tree=tree,Auto=car", or a YAML or JSON file of such pairs, which is required for
            names with commas or equals signs.

    Raises:
        ValueError: the text is neither, or gives a category two names.

    Example:
        >>> read_class_map("Tree=tree,Auto=car")
        {'Tree': 'tree', 'Auto': 'car'}
    """
    pairs = _from_file(Path(text)) if "=" not in text or Path(text).is_file() else _parsed(text)
    seen: set[str] = set()
    for old, new in pairs:
        if not (isinstance(old, str) and isinstance(new, str) and old and new):
            raise ValueError(f"class map {text}: expected names, got {shown(old)}: {shown(new)}")
        if old.casefold() in seen:
            raise ValueError(f"class map {text}: two names for {shown(old)}")
        seen.add(old.casefold())
    return dict(pairs)


def renamed(names: Sequence[str], class_map: ClassMap, where: object) -> list[str]:
    """Returns the names as changed by a class map, ignoring case.

    Args:
        names: names of the categories.
        class_map: new names by old ones.
        where: owner of the names, for messages.

    Raises:
        ValueError: neither an old name nor its new one is among the names.
    """
    known = {name.casefold() for name in names}
    for old, new in class_map.items():
        if not {old.casefold(), new.casefold()} & known:
            raise ValueError(f"{where}: no category {old!r} to rename to {new!r}; it has {names}")
    changes = {old.casefold(): new for old, new in class_map.items()}
    return [changes.get(name.casefold(), name) for name in names]


def _parsed(text: str) -> list[tuple[Any, Any]]:
    pairs = []
    for part in text.split(","):
        old, _, new = (piece.strip() for piece in part.partition("="))
        pairs.append((old, new))
    return pairs


def _from_file(path: Path) -> list[tuple[Any, Any]]:
    import yaml

    from ..safe_yaml import TextLoader, parse_yaml

    try:
        values = parse_yaml(path.read_text(encoding="utf-8-sig"), TextLoader)
    except OSError as error:
        raise ValueError(
            f"class map: expected pairs as in Tree=tree,Auto=car, or a file of them, got {path} "
            f"({error.strerror})"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"class map {path}: neither YAML nor JSON ({reason})") from error
    if not isinstance(values, dict) or not values:
        raise ValueError(f"class map {path}: expected pairs of names, got {shown(values)}")
    return list(values.items())
