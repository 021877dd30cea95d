"""In which order scenes come, and at which size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from graphreplay.tasks.scenes.scene import stream

Size = tuple[int, int]


class SceneOrder(Sampler[int]):
    """Numbers 0 to `count`, shuffled anew by seed and epoch where `shuffle` is set.

    Lightning calls `set_epoch` before every epoch; a loop of one's own does so itself.
    """

    def __init__(self, count: int, seed: int, shuffle: bool) -> None:
        self.count = count
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.count))
        random = torch.Generator().manual_seed(stream(self.seed, self.epoch))
        return iter(torch.randperm(self.count, generator=random).tolist())

    def __len__(self) -> int:
        return self.count


class SizedBatches(Sampler[list[tuple[int, Size]]]):
    """Batches of (scene, size): one size a batch, going round from the first in every epoch. The last may be short."""

    def __init__(self, sampler: SceneOrder, batch_size: int, sizes: Sequence[Size]) -> None:
        # Lightning looks for `set_epoch` at the attribute of this name.
        self.sampler = sampler
        self.batch_size = batch_size
        self.sizes = tuple(sizes)

    def __iter__(self) -> Iterator[list[tuple[int, Size]]]:
        scenes = list(self.sampler)
        for number, start in enumerate(range(0, len(scenes), self.batch_size)):
            size = self.sizes[number % len(self.sizes)]
            yield [(scene, size) for scene in scenes[start : start + self.batch_size]]

    def __len__(self) -> int:
        return (len(self.sampler) + self.batch_size - 1) // self.batch_size
