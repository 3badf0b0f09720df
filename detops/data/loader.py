# SPDX-License-Identifier: MIT
"""Batches for iteration-based training, the same whatever the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

Batch = tuple[list[Tensor], list[dict[str, Any]]]


class SeededSampler(Sampler):
    """Draws samples with replacement, each with the seed of its own augmentation.

    The draw at a position depends on the seed and the position alone, so a run that starts at
    position `start` sees what an uninterrupted run would have seen from there on.
    """

    def __init__(self, size: int, seed: int, start: int, stop: int) -> None:
        if size < 1:
            raise ValueError("training needs at least one image, got an empty data set")
        self.size, self.seed, self.start, self.stop = size, seed, start, stop

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randint(2**62, (self.stop,), generator=generator)
        for draw in draws[self.start :].tolist():
            yield draw % self.size, draw


class _SeededItems(Dataset):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, item: tuple[int, int]) -> Any:
        index, seed = item
        # Only the CPU's generator, and put back afterwards: without workers this runs between the
        # steps of a training whose own random numbers must not be disturbed.
        state = torch.default_generator.get_state()
        try:
            torch.default_generator.manual_seed(seed)
            return self.dataset[index]
        finally:
            torch.default_generator.set_state(state)


def collate(items: list[tuple[Tensor, dict[str, Any]]]) -> Batch:
    """Keeps images [3, h, w] and targets as lists, since their sizes differ."""
    images, targets = zip(*items, strict=True)
    return list(images), list(targets)


def build_train_loader(
    dataset: Dataset,
    batch_size: int,
    iterations: int,
    start: int = 0,
    seed: int = 0,
    workers: int = 0,
) -> DataLoader:
    """Loader of the batches of iterations `start` to `iterations`.

    Args:
        dataset: items (image, target), augmented when asked for.
        batch_size: images in a batch.
        iterations: where training ends, counted from its very beginning.
        start: iterations already done.
        seed: of the draws and of the augmentation.
        workers: processes that prepare batches; 0 prepares them in this one.
    """
    size = len(cast(Sized, dataset))
    sampler = SeededSampler(size, seed, start * batch_size, iterations * batch_size)
    return DataLoader(
        _SeededItems(dataset),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        # Else the loader draws its base seed from the default generator, which is training's.
        generator=torch.Generator().manual_seed(seed),
    )
