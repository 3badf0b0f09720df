# SPDX-License-Identifier: MIT
"""What Python adds to the ops of ``torch.ops.detops``: fake tensors, derivatives, compositions."""

from collections.abc import Callable
from typing import Any

import torch

from . import _C
from .contract import Contract, read

CONTRACTS: dict[str, Contract] = read(_C.contracts)
_LIBRARY = torch.library.Library("detops", "IMPL")

for _contract in CONTRACTS.values():
    if _contract.outputs:
        torch.library.register_fake(f"detops::{_contract.op}", _contract.fake, lib=_LIBRARY)


def derivative(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function`` what the op does above its kernels: an autograd function over raw ops."""
    implementation(op, "Autograd", function)


def implementation(op: str, key: str, function: Callable[..., Any]) -> None:
    """Makes ``function`` what the op does where the dispatcher comes to ``key``."""
    contract = CONTRACTS[op]

    def checked(*args: Any) -> Any:
        arguments = contract.bind(*args)
        contract.check_dense(arguments)
        return function(*arguments.values())

    _LIBRARY.impl(op, checked, key)


def composition(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function``, which calls other ops, the whole op."""
    implementation(op, "CompositeImplicitAutograd", function)


def buffered(op: str, function: Callable[..., Any]) -> None:
    """Makes ``function``, which writes into its arguments, the whole op; it has no derivative.

    The dispatcher would hand out copies of views of negated or conjugated elements, and a buffer
    that takes its size would then have another than the copy.
    """
    implementation(op, "CompositeExplicitAutograd", function)
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(op, torch.library.fallthrough_kernel, key)
