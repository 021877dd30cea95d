"""The four tasks with made-up maps and scenes, for their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from graphreplay.tasks.batch import CLASSES, KEYPOINTS, Batch
from graphreplay.tasks.losses import Loss, detection_loss, oriented_loss, pose_loss, segmentation_loss
from graphreplay.tasks.modules import DetectionModule, OrientedModule, PoseModule, SegmentationModule
from graphreplay.tasks.networks import BINS, DetectionNetwork, OrientedNetwork, PoseNetwork, SegmentationNetwork
from graphreplay.tasks.scenes import SceneData

MODULES: dict[str, Any] = {
    "detection": DetectionModule,
    "pose": PoseModule,
    "oriented": OrientedModule,
    "segmentation": SegmentationModule,
}


class Task(NamedTuple):
    """A network of width 2, and its loss."""

    network: Callable[[], nn.Module]
    loss: Callable[[Any, Batch], Loss]


TASKS = {
    "detection": Task(lambda: DetectionNetwork(CLASSES, 2), detection_loss),
    "pose": Task(lambda: PoseNetwork(CLASSES, KEYPOINTS, 2), pose_loss),
    "oriented": Task(lambda: OrientedNetwork(CLASSES, 2), oriented_loss),
    "segmentation": Task(lambda: SegmentationNetwork(CLASSES, 2), segmentation_loss),
}


class Poisoned(PoseModule):
    """Its keypoints are infinite in one batch."""

    poisoned = 2

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        self._poison = index == self.poisoned
        return super().training_step(batch, index)

    def loss(self, maps: Any, batch: Batch) -> Any:
        if self._poison:
            maps = maps._replace(keypoints=maps.keypoints * float("inf"))
        return super().loss(maps, batch)


def scene_batch(task: str, count: int = 4, height: int = 64, width: int = 96, seed: int = 0) -> Batch:
    """The first batch of drawn scenes; with 4 of seed 0 one is empty or more are not."""
    data = SceneData(task, batch_size=count, sizes=((height, width),), val_scenes=count, seed=seed)
    return next(iter(data.val_dataloader()))


def emptied(batch: Batch) -> Batch:
    """The same images without any object."""
    return Batch(batch.images, *(torch.zeros_like(target) for target in batch[1:]))


def random_maps(task: str, batch: Batch, seed: int = 0) -> Any:
    """What a network of the task might give: leaves, that want gradients."""
    maps = TASKS[task].network().eval()(batch.images)
    random = torch.Generator().manual_seed(seed)
    return type(maps)(*(torch.randn(one.shape, generator=random).requires_grad_() for one in maps))


def exact_sides(aims: torch.Tensor) -> torch.Tensor:
    """Logits (1, 4 BINS, A) whose expectation is `aims` (A, 4)."""
    shares = (1 - (aims[..., None] - torch.arange(BINS)).abs()).clamp(min=1e-30)
    return shares.log().permute(1, 2, 0).flatten(0, 1)[None]
