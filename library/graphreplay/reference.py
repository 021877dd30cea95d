"""A small detection network like the YOLO family's, with its LightningModule and data: what the suites train.

The tasks' trunk and three heads, some 0.3 million weights at width 8, written for tests: dropout, so that the random
stream counts; a tower shared by the three heads, so that a weight is used more than once in a forward; and a spare
weight that is never used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from graphreplay.tasks.networks.blocks import Conv
from graphreplay.tasks.networks.trunk import Trunk

CLASSES = 3
STRIDES = (8, 16, 32)


class ReferenceNetwork(Trunk):
    """Images (batch, 3, height, width) to three maps (batch, 4 + CLASSES, height / s, width / s), s of `STRIDES`.

    Args:
        width: Channels after the stem. Height and width of images must be multiples of 32.
        dropout: Probability with which channels of the coarsest level are dropped.
    """

    def __init__(self, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__(width, dropout)
        inner = self.channels[0]
        self.enter = nn.ModuleList(Conv(channels, inner, 1) for channels in self.channels)
        self.tower = Conv(inner, inner)
        self.boxes = nn.ModuleList(nn.Conv2d(inner, 4, 1) for _ in STRIDES)
        self.classes = nn.ModuleList(nn.Conv2d(inner, CLASSES, 1) for _ in STRIDES)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        levels = super().forward(images)
        towers = [self.tower(enter(level)) for enter, level in zip(self.enter, levels, strict=True)]
        return tuple(
            torch.cat([box(tower), kind(tower)], 1)
            for tower, box, kind in zip(towers, self.boxes, self.classes, strict=True)
        )


class ReferenceModule(LightningModule):
    """Trains a `ReferenceNetwork` by SGD with momentum and a schedule of every step; keeps an average of its weights.

    A batch is images and, for each stride, target maps (batch, 4 + CLASSES, height / s, width / s) of values in 0 to 1.
    """

    def __init__(self, width: int = 8, dropout: float = 0.1, rate: float = 0.02) -> None:
        super().__init__()
        self.network = ReferenceNetwork(width, dropout)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        self.rate = rate
        self._averaged_steps = 0

    def training_step(self, batch: tuple[torch.Tensor, Sequence[torch.Tensor]], _: int) -> torch.Tensor:
        images, targets = batch
        return detection_loss(self.network(images), targets)

    def validation_step(self, batch: tuple[torch.Tensor, Sequence[torch.Tensor]], _: int) -> None:
        images, targets = batch
        self.log("validation_loss", detection_loss(self.network(images), targets), batch_size=len(images))

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step == self._averaged_steps:
            return
        self._averaged_steps = self.trainer.global_step
        with torch.no_grad():
            for mean, now in zip(self.average.state_dict().values(), self.network.state_dict().values(), strict=True):
                if mean.is_floating_point():
                    mean.lerp_(now, 0.1)
                else:
                    mean.copy_(now)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(
            self.network.parameters(), self.rate, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 1000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def detection_loss(outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """Smooth L1 of the boxes plus binary cross-entropy of the classes, summed over the levels, in float32."""
    total = torch.zeros((), device=outputs[0].device)
    for output, target in zip(outputs, targets, strict=True):
        boxes, classes = output.float().split([4, CLASSES], 1)
        total = total + functional.smooth_l1_loss(boxes, target[:, :4])
        total = total + functional.binary_cross_entropy_with_logits(classes, target[:, 4:])
    return total


def reference_batches(
    shapes: Sequence[tuple[int, int, int]], steps: int, seed: int = 1
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Random batches on the CPU, whose (batch, height, width) go round through `shapes`."""
    random = torch.Generator().manual_seed(seed)
    batches = []
    for step in range(steps):
        count, height, width = shapes[step % len(shapes)]
        images = torch.rand(count, 3, height, width, generator=random)
        maps = [torch.rand(count, 4 + CLASSES, height // s, width // s, generator=random) for s in STRIDES]
        batches.append((images, maps))
    return batches
