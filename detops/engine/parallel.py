# SPDX-License-Identifier: MIT
"""A model in each of several processes, whose gradients are means over all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ..distributed import world_size


def in_parallel(model: nn.Module) -> nn.Module:
    """The model for training in all processes; itself where there is one."""
    if world_size() == 1:
        return model
    # A head without samples may leave its parameters out of the graph, in some processes only.
    # Buffers other than running statistics are constants.
    return DistributedDataParallel(
        model,
        find_unused_parameters=True,
        broadcast_buffers=any(isinstance(m, _BatchNorm) for m in model.modules()),
    )


def sync(parallel: nn.Module, now: bool) -> AbstractContextManager:
    """A block of one backward of several, of which the last alone has the gradients travel."""
    if now or not isinstance(parallel, DistributedDataParallel):
        return nullcontext()
    return parallel.no_sync()
