# SPDX-License-Identifier: MIT
"""Processes that train or evaluate together, as torchrun starts them.

Everything here works in a process that runs alone too, and then does next to nothing. What talks
to the other processes (all but `world_size`, `rank` and `is_main`) must be called by all of them,
in the same order.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from .device import choose_device

T = TypeVar("T")

PATIENCE = 600  # seconds that the first process waits for the others
FOR_EVER = timedelta(days=365)

_store: dist.Store | None = None  # what the processes have in common
_meetings = itertools.count()  # the same in all processes, as all make the same calls


@contextmanager
def processes(device: str | torch.device | None = None) -> Iterator[torch.device]:
    """Joins the processes that torchrun started, by its environment variables.

    CPU tensors and objects travel by gloo, CUDA tensors by NCCL.

    Args:
        device: where to compute; CUDA if there is any by default. "cuda" gives each process of a
            machine a device of its own.

    Yields:
        This process's device.

    Raises:
        ValueError: a machine has fewer CUDA devices than processes, or one is asked for by number;
            see also `choose_device`.

    Example:
        >>> with detops.distributed.processes("cpu") as device:  # torchrun says how many
        ...     device, world_size()
        (device(type='cpu'), 1)
    """
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    place = choose_device(device)
    if not together or dist.is_initialized():
        yield place
        return
    if place.type == "cuda":
        place = _own_cuda_device(place)
        torch.cuda.set_device(place)
    global _store
    store, rank, size = _fresh_store()
    _store = store
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield place
        # All leave together. One that leaves at once after its last message can abort: a thread
        # that still holds the message's tensors meets an interpreter that is shutting down.
        dist.barrier()
    finally:
        _store = None
        dist.destroy_process_group()


def _fresh_store() -> tuple[dist.Store, int, int]:
    """A part of the processes' common store that no earlier attempt has written to; rank, size.

    torchrun keeps one store over all restarts, and processes of a new attempt that read addresses
    which those of the last one left there fail to connect. It counts restarts, but each machine
    for itself (https://github.com/pytorch/pytorch/issues/135712). So the first process chooses a
    name, and every other shows by a random number that it is no leftover itself, gets the name
    under that number, and confirms it.
    """
    store, rank, size = next(rendezvous("env://"))
    name = mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"process {rank}", mine)
        name = store.get(f"name for {mine}").decode()
        store.set(f"{name} confirmed by {rank}", "")
    missing, deadline = set(range(1, size)) if rank == 0 else set(), time.monotonic() + PATIENCE
    while missing:
        for other in tuple(missing):
            if store.check([f"process {other}"]):
                store.set(f"name for {store.get(f'process {other}').decode()}", name)
            if store.check([f"{name} confirmed by {other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(missing)} of {size} have not come")
        time.sleep(0.02)
    return dist.PrefixStore(name, store), rank, size


def _own_cuda_device(wanted: torch.device) -> torch.device:
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if wanted.index is not None:
        raise ValueError(f"device: expected cuda, one for each of several processes, got {wanted}")
    if local >= count:
        raise ValueError(
            f"device: process {local} of this machine needs a CUDA device of its own, there are "
            f"{count}: start fewer processes, or ask for cpu"
        )
    return torch.device("cuda", local)


def world_size() -> int:
    """How many processes there are; 1 alone.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number; 0 alone.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process is the one that writes files and talks to the user.

    Example:
        >>> is_main()
        True
    """
    return rank() == 0


def on_main(function: Callable[[], T]) -> T:
    """Calls a function in the main process; its result or its error is everyone's.

    Example:
        >>> on_main(lambda: 7)
        7
    """
    if world_size() == 1:
        return function()
    outcome: list[Any] = [None, None]
    if is_main():
        try:
            outcome[0] = function()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def gather_objects(value: T) -> list[T]:
    """Everyone's value, by rank, in the main process; an empty list in the others.

    Example:
        >>> gather_objects(rank())
        [0]
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.gather_object(value, values if is_main() else None)
    return values if is_main() else []


def shares(count: int, size: int) -> Iterator[range]:
    """Shares the numbers 0..count out among the processes: who is ready gets the next ones.

    A process that has got its last ones waits for the others, however long they take.

    Args:
        count: how many there are; the same in all processes.
        size: how many a process gets at a time.

    >>> list(shares(5, 2))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    store, name = _store, f"shares {next(_meetings)}"

    def take() -> int:
        return store.add(name, size) - size if store else next(alone)

    alone = itertools.count(0, size)
    while (start := take()) < count:
        yield range(start, min(start + size, count))
    if store:
        store.set(f"{name} done by {rank()}", "")
        # Not a barrier: its patience may be at an end before a long video is.
        store.wait([f"{name} done by {each}" for each in range(world_size())], FOR_EVER)


def mean(values: Tensor) -> Tensor:
    """Mean over the processes of tensors of one shape.

    Example:
        >>> mean(torch.tensor([2.0]))
        tensor([2.])
    """
    if world_size() > 1:
        dist.all_reduce(values)
        values /= world_size()
    return values


def maximum(values: Tensor) -> Tensor:
    """Largest over the processes, element by element.

    Example:
        >>> maximum(torch.tensor([2.0]))
        tensor([2.])
    """
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def mean_count(count: int, like: Tensor) -> int | Tensor:
    """What a sum of losses is divided by to be a mean over the samples of all processes.

    DistributedDataParallel averages gradients. With S_p the sum and n_p the count of process p of
    P, the mean over p of S_p / (sum of n / P) is (sum of S) / (sum of n): the loss of one process
    with all the samples. Dividing by n_p instead would weigh samples by where they happened to be.

    Args:
        count: samples of this process; may be 0, all of them may.
        like: its device is used.

    Example:
        >>> mean_count(8, torch.zeros(()))
        8
    """
    if world_size() == 1:
        return max(1, count)
    total = torch.tensor(float(count), device=like.device)
    dist.all_reduce(total)
    return total.clamp_(min=1) / world_size()


def best_indices(scores: Tensor, count: int) -> Tensor:
    """Which of this process's scores are among the best of all processes.

    Args:
        scores: ``[n]``; n may differ between processes.
        count: how many are chosen in all.

    Returns:
        int64 ``[k]``, best first.

    Example:
        >>> best_indices(torch.tensor([0.1, 0.9, 0.5]), 2)
        tensor([1, 2])
    """
    values, indices = scores.topk(min(count, scores.numel()))
    if world_size() == 1:
        return indices
    padded = values.new_full((count,), -torch.inf)
    padded[: values.numel()] = values
    everyone = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(everyone, padded)
    chosen = torch.cat(everyone).topk(count).indices - rank() * count
    return indices[chosen[(chosen >= 0) & (chosen < values.numel())]]
