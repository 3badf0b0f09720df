# SPDX-License-Identifier: MIT
"""Communication between the processes that torchrun starts for training and evaluation.

Everything here also works in a single process, at almost no cost. All processes must call the
functions that communicate (all except `world_size`, `rank` and `is_main`), in the same order.
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

JOIN_TIMEOUT = 600  # seconds that the first process waits for the others
NO_TIMEOUT = timedelta(days=365)

_store: dist.Store | None = None  # shared by all processes
_call_ids = itertools.count()  # equal in all processes, because all make the same calls


@contextmanager
def processes(device: str | torch.device | None = None) -> Iterator[torch.device]:
    """Joins the processes that torchrun started, as its environment variables describe.

    CPU tensors and objects are sent with gloo, CUDA tensors with NCCL.

    Args:
        device: device to compute on; by default CUDA if available. "cuda" gives each process on a
            machine its own device.

    Yields:
        This process's device.

    Raises:
        ValueError: a machine has fewer CUDA devices than processes, or several processes request a
            device by number; see also `choose_device`.

    Example:
        >>> with detops.distributed.processes("cpu") as device:  # torchrun says how many
        ...     device, world_size()
        (device(type='cpu'), 1)
    """
    is_distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    chosen = choose_device(device)
    if not is_distributed or dist.is_initialized():
        yield chosen
        return
    if chosen.type == "cuda":
        chosen = _local_cuda_device(chosen)
        torch.cuda.set_device(chosen)
    global _store
    store, rank, size = _new_store()
    _store = store
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield chosen
        # All processes leave together. One that exits right after its last message can abort: a
        # thread may still hold the message's tensors while the interpreter shuts down.
        dist.barrier()
    finally:
        _store = None
        dist.destroy_process_group()


def _new_store() -> tuple[dist.Store, int, int]:
    """Returns a fresh part of the shared store, the rank and the number of processes.

    torchrun keeps one store over all restarts. Processes that read addresses left there by an
    earlier attempt fail to connect. The restart count does not help, because each machine counts
    separately (https://github.com/pytorch/pytorch/issues/135712). Rank 0 therefore chooses a random
    name. Every other rank stores a random number to prove that it is part of this attempt, reads
    the name stored under that number, and confirms it.
    """
    store, rank, size = next(rendezvous("env://"))
    name = token = uuid.uuid4().hex
    if rank > 0:
        store.set(f"process {rank}", token)
        name = store.get(f"name for {token}").decode()
        store.set(f"{name} confirmed by {rank}", "")
    missing, deadline = set(range(1, size)) if rank == 0 else set(), time.monotonic() + JOIN_TIMEOUT
    while missing:
        for other in tuple(missing):
            if store.check([f"process {other}"]):
                store.set(f"name for {store.get(f'process {other}').decode()}", name)
            if store.check([f"{name} confirmed by {other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"ranks {sorted(missing)} of {size} did not join")
        time.sleep(0.02)
    return dist.PrefixStore(name, store), rank, size


def _local_cuda_device(requested: torch.device) -> torch.device:
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if requested.index is not None:
        raise ValueError(
            f"device: expected cuda without a number for several processes, got {requested}"
        )
    if local >= count:
        raise ValueError(
            f"device: process {local} of this machine needs its own CUDA device, but there are "
            f"{count}: start fewer processes, or use cpu"
        )
    return torch.device("cuda", local)


def world_size() -> int:
    """Returns the number of processes; 1 for a single process.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Returns the number of this process; 0 for a single process.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """Returns whether this process is the one that writes files and prints to the user.

    Example:
        >>> is_main()
        True
    """
    return rank() == 0


def on_main(function: Callable[[], T]) -> T:
    """Calls a function in the main process; all processes return its result or raise its error.

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
    """Returns the values of all processes by rank in the main process, and [] in the others.

    Example:
        >>> gather_objects(rank())
        [0]
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.gather_object(value, values if is_main() else None)
    return values if is_main() else []


def distribute_chunks(count: int, size: int) -> Iterator[range]:
    """Distributes 0, ..., count - 1 among the processes: each gets more when it is ready.

    A process that has finished waits for the others, however long they take.

    Args:
        count: how many numbers there are; equal in all processes.
        size: how many numbers a process gets at a time.

    >>> list(distribute_chunks(5, 2))
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    store, name = _store, f"chunks {next(_call_ids)}"

    def claim() -> int:
        return store.add(name, size) - size if store else next(local_counter)

    local_counter = itertools.count(0, size)
    while (start := claim()) < count:
        yield range(start, min(start + size, count))
    if store:
        store.set(f"{name} done by {rank()}", "")
        # Not a barrier, which may time out before a long video ends.
        store.wait([f"{name} done by {each}" for each in range(world_size())], NO_TIMEOUT)


def mean(values: Tensor) -> Tensor:
    """Returns the mean over all processes of tensors with the same shape.

    Example:
        >>> mean(torch.tensor([2.0]))
        tensor([2.])
    """
    if world_size() > 1:
        dist.all_reduce(values)
        values /= world_size()
    return values


def maximum(values: Tensor) -> Tensor:
    """Returns the elementwise maximum over all processes.

    Example:
        >>> maximum(torch.tensor([2.0]))
        tensor([2.])
    """
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def mean_count(count: int, like: Tensor) -> int | Tensor:
    """Returns the divisor that turns a sum of losses into a mean over the samples of all processes.

    DistributedDataParallel averages gradients. Let S_p be the sum and n_p the count of process p of
    P. The mean over p of S_p / (sum of n / P) is (sum of S) / (sum of n), the loss of one process
    with all the samples. Dividing by n_p instead would make the weight of a sample depend on its
    process.

    Args:
        count: samples of this process; may be 0, even in all processes.
        like: a tensor on the device to use.

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
    """Returns the indices of this process's scores that are among the best of all processes.

    Args:
        scores: ``[n]``; n may differ between processes.
        count: how many to choose in total.

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
    gathered = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(gathered, padded)
    chosen = torch.cat(gathered).topk(count).indices - rank() * count
    return indices[chosen[(chosen >= 0) & (chosen < values.numel())]]
