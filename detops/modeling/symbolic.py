"""Sizes that are symbols while a graph is exported: a question would bind it to the answer."""

from typing import TypeVar, cast

import torch

Number = TypeVar("Number", int, float)


def exporting() -> bool:
    """Whether sizes may be symbols that ``min``, ``max`` and ``if`` would ask."""
    # Dynamo knows what the builtins mean, and takes torch's own for symbols alone.
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def smaller(a: Number, b: Number) -> Number:
    """``min(a, b)``."""
    return cast(Number, torch.sym_min(a, b)) if exporting() else min(a, b)


def larger(a: Number, b: Number) -> Number:
    """``max(a, b)``."""
    return cast(Number, torch.sym_max(a, b)) if exporting() else max(a, b)


def surely(condition: bool) -> bool:
    """The condition; of symbols, whether it holds whatever they stand for."""
    # With SymPy it takes 0.4 s to import, and exports alone need it.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)
