"""Scenes as batches, for a fit: the data set, how scenes become a batch, and the LightningDataModule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from graphreplay.errors import OptionError
from graphreplay.tasks.batch import KEYPOINTS as KEYPOINT_COUNT
from graphreplay.tasks.batch import MASK_STRIDE, MAX_OBJECTS, TASKS, Batch
from graphreplay.tasks.scenes.order import SceneOrder, Size, SizedBatches
from graphreplay.tasks.scenes.scene import Scene, draw_scene

SIZES: tuple[Size, ...] = ((128, 128), (96, 128), (128, 96))
# Scenes for validation are numbered from here, so that none is a scene for training.
VALIDATION = 1 << 31
_STEP = 32


class SceneSet(Dataset[Scene]):
    """Scenes `first` to `first + count` of a seed; an item is asked for by its number and its size in pixels."""

    def __init__(self, seed: int, first: int, count: int) -> None:
        self.seed = seed
        self.first = first
        self.count = count

    def __getitem__(self, key: tuple[int, Size]) -> Scene:
        number, (height, width) = key
        return draw_scene(self.seed, self.first + number, height, width)

    def __len__(self) -> int:
        return self.count


class Collate:
    """Scenes of one size to a `Batch` with what `task` uses; the other tasks' keypoints and masks have no elements."""

    def __init__(self, task: str) -> None:
        self.task = task

    def __call__(self, scenes: Sequence[Scene]) -> Batch:
        count, (height, width) = len(scenes), scenes[0].image.shape[1:]
        keypoints = KEYPOINT_COUNT if self.task == "pose" else 0
        grid = (height // MASK_STRIDE, width // MASK_STRIDE) if self.task == "segmentation" else (0, 0)
        batch = Batch(
            images=torch.stack([scene.image for scene in scenes]) * torch.tensor(1 / 255),
            present=torch.zeros(count, MAX_OBJECTS, dtype=torch.bool),
            classes=torch.zeros(count, MAX_OBJECTS, dtype=torch.int64),
            boxes=torch.zeros(count, MAX_OBJECTS, 4),
            keypoints=torch.zeros(count, MAX_OBJECTS, keypoints, 3),
            rotated=torch.zeros(count, MAX_OBJECTS, 5),
            masks=torch.zeros(count, MAX_OBJECTS, *grid, dtype=torch.uint8),
        )
        for place, scene in enumerate(scenes):
            self._fill(batch, place, scene)
        return batch

    def _fill(self, batch: Batch, place: int, scene: Scene) -> None:
        objects = len(scene.classes)
        batch.present[place, :objects] = True
        batch.classes[place, :objects] = scene.classes
        batch.boxes[place, :objects] = scene.boxes
        batch.rotated[place, :objects] = scene.rotated
        if self.task == "pose":
            batch.keypoints[place, :objects] = scene.keypoints
        if self.task == "segmentation":
            batch.masks[place, :objects] = scene.masks()


class SceneData(LightningDataModule):
    """Drawn scenes for the training and validation of one task, in batches of sizes that go round.

    Args:
        task: One of `TASKS`; decides which targets a batch has.
        batch_size: Scenes in a batch; the last of an epoch has what is left.
        sizes: Heights and widths in pixels, multiples of 32. A batch has one size; the next batch has the next one.
        train_scenes: Scenes in an epoch, shuffled anew in each.
        val_scenes: Scenes for validation, none of which is a scene for training.
        seed: Which scenes, and in which order.
        workers: Processes that draw; 0 draws in this one. They live as long as the fit.
        pin_memory: Whether batches are put into pinned memory; None: where there is a GPU.

    Raises:
        OptionError: An option has a wrong type or value; or, when batches are asked for, the fit runs in
            several processes, over which batches of one size each are not shared out.
    """

    def __init__(
        self,
        task: str,
        batch_size: int = 8,
        sizes: Sequence[Size] = SIZES,
        train_scenes: int = 512,
        val_scenes: int = 64,
        seed: int = 0,
        workers: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__()
        if task not in TASKS:
            raise OptionError(f"task={task!r} is unknown; use one of {', '.join(TASKS)}")
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("train_scenes", train_scenes, 1),
            ("val_scenes", val_scenes, 0),
            ("seed", seed, 0),
            ("workers", workers, 0),
        ):
            _require_whole(name, value, least)
        if pin_memory not in (True, False, None):
            raise OptionError(f"pin_memory={pin_memory!r} must be True, False or None")
        self.task = task
        self.batch_size = batch_size
        self.sizes = _checked_sizes(sizes)
        self.seed = seed
        self.workers = workers
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self.train_set = SceneSet(seed, 0, train_scenes)
        self.val_set = SceneSet(seed, VALIDATION, val_scenes)

    def train_dataloader(self) -> DataLoader[Scene]:
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> DataLoader[Scene]:
        return self._loader(self.val_set, shuffle=False)

    def predict_dataloader(self) -> DataLoader[Scene]:
        """The scenes for validation."""
        return self.val_dataloader()

    def _loader(self, scenes: SceneSet, shuffle: bool) -> DataLoader[Scene]:
        processes = 1 if self.trainer is None else self.trainer.world_size
        if processes > 1:
            raise OptionError(f"SceneData feeds one process, and the Trainer runs {processes}; use Trainer(devices=1)")
        order = SceneOrder(len(scenes), self.seed, shuffle)
        return DataLoader(
            scenes,
            batch_sampler=SizedBatches(order, self.batch_size, self.sizes),
            collate_fn=Collate(self.task),
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin_memory,
        )


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}={value!r} must be a whole number of at least {least}")


def _checked_sizes(sizes: object) -> tuple[Size, ...]:
    if not isinstance(sizes, Sequence):
        raise OptionError(f"sizes={sizes!r} must be a sequence of pairs (height, width)")
    if not sizes:
        raise OptionError(f"sizes={sizes!r} names no size; give at least one (height, width)")
    return tuple(_checked_size(size) for size in sizes)


def _checked_size(size: object) -> Size:
    if not isinstance(size, Sequence) or len(size) != 2:
        raise OptionError(f"sizes holds {size!r}; give pairs (height, width)")
    height, width = size
    if not all(isinstance(side, int) and side > 0 and side % _STEP == 0 for side in (height, width)):
        raise OptionError(f"sizes holds {size!r}; height and width must be multiples of {_STEP}")
    return height, width
