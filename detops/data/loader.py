# SPDX-License-Identifier: MIT
"""Batches for iteration-based training, the same whatever the number of workers and processes."""

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
    """Shuffled epochs without end, cut into batches; each sample with a seed of its own.

    Batch number i depends on the seed and i alone, so a run that starts at `start` sees what an
    uninterrupted run would have seen from there on; the processes' shares of it make up what one
    process would see.

    Args:
        size: samples in the data set.
        batch_size: samples in a batch, over all processes.
        start: first batch.
        stop: batch after the last.
        seed: of the order and of the samples' seeds.
        groups: a group for each sample; the samples of a batch are of one group. What is left of a
            group at the end of an epoch waits for the next.
        share: this process's number and how many there are.
        parts: pieces that a batch is worked on in, one after the other. The processes' shares of
            each piece make up one piece of a single process.

    Yields:
        pairs of index and seed, of this process's share of a batch, piece by piece.
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
            raise ValueError("training needs at least one image, got an empty data set")
        number, processes = share
        if parts < 1 or batch_size < 1 or batch_size % (processes * parts):
            raise ValueError(
                f"SOLVER.IMS_PER_BATCH: expected a multiple of processes ({processes}) times "
                f"SOLVER.ACCUMULATE ({parts}), got {batch_size}"
            )
        self.size, self.batch_size, self.seed, self.groups = size, batch_size, seed, groups
        self.start, self.stop = start, stop
        each = batch_size // (processes * parts)
        self._slots = [
            (part * processes + number) * each + i for part in range(parts) for i in range(each)
        ]

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        # Batches before `start` are gone through too: with groups, what waits from them matters.
        for batch in islice(self._batches(), self.start, max(self.start, self.stop)):
            mine = [batch[slot] for slot in self._slots]
            yield [(index, mix(self.seed, 1, position)) for position, index in mine]

    def _batches(self) -> Iterator[list[tuple[int, int]]]:
        waiting: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for position, index in enumerate(self._indices()):
            group = 0 if self.groups is None else self.groups[index]
            waiting[group].append((position, index))
            if len(waiting[group]) == self.batch_size:
                yield waiting.pop(group)

    def _indices(self) -> Iterator[int]:
        for epoch in count():
            generator = torch.Generator().manual_seed(mix(self.seed, 0, epoch))
            yield from torch.randperm(self.size, generator=generator).tolist()


class _SeededItems(Dataset):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, item: tuple[int, int]) -> Any:
        index, seed = item
        # Put back afterwards: without workers this runs between the steps of a training whose own
        # random numbers must not be disturbed.
        with seeded(seed):
            image, target = self.dataset[index]
        return image, target | {"seed": mix(seed)}


def collate(items: list[tuple[Tensor, dict[str, Any]]]) -> Batch:
    """Keeps images [3, h, w] and targets as lists, since their sizes differ."""
    images, targets = zip(*items, strict=True)
    return list(images), list(targets)


def orientations(dataset: Dataset) -> list[int] | None:
    """Per image 1 if it is wider than high, else 0; None if the data set does not tell.

    It tells by `images`, COCO's records with `width` and `height`.
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
    """Loader of the batches of iterations `start` to `iterations`.

    Args:
        dataset: items (image, target), augmented when asked for. Random numbers may come from the
            default generators of torch, numpy and Python. Targets get a `seed`, from which the
            model can take the image's random numbers.
        batch_size: images in a batch, over all processes.
        iterations: where training ends, counted from its very beginning.
        start: iterations already done.
        seed: of the order and of the augmentation.
        workers: processes that prepare batches; 0 prepares them in this one.
        group_orientations: make batches of images that are all wider than high or all not, so
            that less of a batch is padding; see `orientations`.
        share: this process's number and how many there are; the loader gives its share.
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
        # Else the loader draws its base seed from the default generator, which is training's.
        generator=torch.Generator().manual_seed(seed),
    )
