"""Sizes that are symbolic during export: a branch on one would specialise the graph."""

from typing import TypeVar, cast

import torch

Number = TypeVar("Number", int, float)


def exporting() -> bool:
    """Returns whether sizes may be symbols, on which ``min``, ``max`` and ``if`` add guards."""
    # Dynamo traces the builtins itself, and accepts torch.sym_min and sym_max only for symbols.
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def sym_min(a: Number, b: Number) -> Number:
    """Returns ``min(a, b)``, also of symbolic sizes."""
    return cast(Number, torch.sym_min(a, b)) if exporting() else min(a, b)


def sym_max(a: Number, b: Number) -> Number:
    """Returns ``max(a, b)``, also of symbolic sizes."""
    return cast(Number, torch.sym_max(a, b)) if exporting() else max(a, b)


def statically_true(condition: bool) -> bool:
    """Returns a condition; if it is symbolic, whether it holds for all values of the symbols."""
    # Imported here: it loads SymPy, which takes 0.4 s, and only exports need it.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)
