# SPDX-License-Identifier: MIT
"""Batches for iteration-based training, independent of the number of workers and processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Sized
from itertools import count, islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler

from .seeding import mix, seeded

Batch = tuple[list[Tensor], list[dict[str, Any]]]


class SeededBatchSampler(Sampler[list[tuple[int, int]]]):
    """Endless shuffled epochs, cut into batches, with a separate seed for each sample.

    Batch number i depends only on the seed and i. A run that starts at `start` therefore gets the
    same batches as an uninterrupted run. The parts of all processes together are the batch of a
    single process.

    Args:
        size: number of samples in the dataset.
        batch_size: number of samples in a batch, over all processes.
        start: first batch.
        stop: batch after the last.
        seed: seed of the order and of the samples' seeds.
        groups: group of each sample; a batch contains samples of one group. Samples of a group left
            over at the end of an epoch go into a batch of the next.
        share: rank of this process and number of processes.
        parts: number of pieces in which a batch is processed, one after another. Over all
            processes, each piece equals that of a single process.

    Yields:
        Lists of (index, seed) of this process's part of a batch, piece by piece.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        start: int,
        stop: int,
        seed: int = 0,
        groups: Sequence[int] | None = None,
        share: tuple[int, int] = (0, 1),
        parts: int = 1,
    ) -> None:
        if size < 1:
            raise ValueError("training requires at least one image, got an empty dataset")
        rank, processes = share
        if parts < 1 or batch_size < 1 or batch_size % (processes * parts):
            raise ValueError(
                f"SOLVER.IMS_PER_BATCH: expected a multiple of processes ({processes}) times "
                f"SOLVER.ACCUMULATE ({parts}), got {batch_size}"
            )
        self.size, self.batch_size, self.seed, self.groups = size, batch_size, seed, groups
        self.start, self.stop = start, stop
        per_piece = batch_size // (processes * parts)
        self._slots = [
            (part * processes + rank) * per_piece + i
            for part in range(parts)
            for i in range(per_piece)
        ]

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        # Batches before `start` are generated too: with groups, their leftover samples matter.
        for batch in islice(self._batches(), self.start, max(self.start, self.stop)):
            mine = [batch[slot] for slot in self._slots]
            yield [(index, mix(self.seed, 1, position)) for position, index in mine]

    def _batches(self) -> Iterator[list[tuple[int, int]]]:
        pending: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for position, index in enumerate(self._indices()):
            group = 0 if self.groups is None else self.groups[index]
            pending[group].append((position, index))
            if len(pending[group]) == self.batch_size:
                yield pending.pop(group)

    def _indices(self) -> Iterator[int]:
        for epoch in count():
            generator = torch.Generator().manual_seed(mix(self.seed, 0, epoch))
            yield from torch.randperm(self.size, generator=generator).tolist()


class _SeededItems(Dataset):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, item: tuple[int, int]) -> Any:
        index, seed = item
        # Restore the generators afterwards: without workers, this runs between the steps of a
        # training run, whose own random numbers must not change.
        with seeded(seed):
            image, target = self.dataset[index]
        return image, target | {"seed": mix(seed)}


def collate(items: list[tuple[Tensor, dict[str, Any]]]) -> Batch:
    """Keeps images [3, h, w] and targets as lists, since their sizes differ."""
    images, targets = zip(*items, strict=True)
    return list(images), list(targets)


def orientations(dataset: Dataset) -> list[int] | None:
    """Returns 1 for each image that is wider than high, else 0; None if sizes are unknown.

    Sizes come from the dataset's `images`, COCO records with `width` and `height`.
    """
    if isinstance(dataset, ConcatDataset):
        parts = [orientations(part) for part in dataset.datasets]
        return None if None in parts else [group for part in parts for group in part or ()]
    records = getattr(dataset, "images", None)
    return None if records is None else [int(r["width"] > r["height"]) for r in records]


def build_train_loader(
    dataset: Dataset,
    batch_size: int,
    iterations: int,
    start: int = 0,
    seed: int = 0,
    workers: int = 0,
    group_orientations: bool = False,
    share: tuple[int, int] = (0, 1),
    parts: int = 1,
) -> DataLoader:
    """Builds a loader of the batches of iterations `start` to `iterations`.

    Args:
        dataset: items (image, target), augmented on access. It may draw random numbers from the
            default generators of torch, numpy and Python. Targets get a `seed` for the random
            numbers of the model for that image.
        batch_size: number of images in a batch, over all processes.
        iterations: iteration at which training ends, counted from its very beginning.
        start: number of iterations already done.
        seed: seed of the order and of the augmentation.
        workers: number of processes that prepare batches; 0 prepares them in this process.
        group_orientations: form batches of images that are either all wider than high or all not,
            to reduce padding; see `orientations`.
        share: rank of this process and number of processes; the loader yields this process's part.
        parts: see `SeededBatchSampler`.

    Example:
        >>> data = [(torch.rand(3, 8, 8), {"boxes": torch.zeros(0, 4)})] * 4
        >>> images, targets = next(iter(build_train_loader(data, batch_size=2, iterations=1)))
        >>> len(images), images[0].shape
        (2, torch.Size([3, 8, 8]))
    """
    size = len(cast(Sized, dataset))
    groups = orientations(dataset) if group_orientations else None
    return DataLoader(
        _SeededItems(dataset),
        batch_sampler=SeededBatchSampler(
            size, batch_size, start, iterations, seed, groups, share, parts
        ),
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        # Otherwise the loader would draw its base seed from the default generator, which training
        # uses.
        generator=torch.Generator().manual_seed(seed),
    )
