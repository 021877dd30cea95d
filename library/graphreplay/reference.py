"""A small detection network like the YOLO family's, with its LightningModule and data: what the suites train.

Shapes of YOLOv8 (CSP blocks, spatial pyramid pooling, a path aggregation neck, three decoupled heads), some 0.3 million
weights at width 8, written for tests: dropout, so that the random stream counts; a tower shared by the three heads, so
that a weight is used more than once in a forward; and a spare weight that is never used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional

from graphreplay.tasks.networks.blocks import Conv, CrossStage, Pyramid

CLASSES = 3
STRIDES = (8, 16, 32)


class ReferenceNetwork(nn.Module):
    """Images (batch, 3, height, width) to three maps (batch, 4 + CLASSES, height / s, width / s), s of `STRIDES`.

    Args:
        width: Channels after the stem. Height and width of images must be multiples of 32.
        dropout: Probability with which channels of the coarsest level are dropped.
    """

    def __init__(self, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        w = [width * 2**level for level in range(5)]
        self.stem = Conv(3, w[0], 3, 2)
        self.down2 = nn.Sequential(Conv(w[0], w[1], 3, 2), CrossStage(w[1], w[1]))
        self.down3 = nn.Sequential(Conv(w[1], w[2], 3, 2), CrossStage(w[2], w[2]))
        self.down4 = nn.Sequential(Conv(w[2], w[3], 3, 2), CrossStage(w[3], w[3]))
        self.down5 = nn.Sequential(Conv(w[3], w[4], 3, 2), CrossStage(w[4], w[4]), Pyramid(w[4]))
        self.dropout = nn.Dropout2d(dropout)
        self.up4 = CrossStage(w[4] + w[3], w[3])
        self.up3 = CrossStage(w[3] + w[2], w[2])
        self.path4 = Conv(w[2], w[2], 3, 2)
        self.out4 = CrossStage(w[2] + w[3], w[3])
        self.path5 = Conv(w[3], w[3], 3, 2)
        self.out5 = CrossStage(w[3] + w[4], w[4])
        self.enter = nn.ModuleList(Conv(channels, w[2], 1) for channels in w[2:])
        self.tower = Conv(w[2], w[2])
        self.boxes = nn.ModuleList(nn.Conv2d(w[2], 4, 1) for _ in STRIDES)
        self.classes = nn.ModuleList(nn.Conv2d(w[2], CLASSES, 1) for _ in STRIDES)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fine = self.down3(self.down2(self.stem(images)))
        middle = self.down4(fine)
        coarse = self.dropout(self.down5(middle))
        up = self.up4(torch.cat([functional.interpolate(coarse, scale_factor=2.0), middle], 1))
        level3 = self.up3(torch.cat([functional.interpolate(up, scale_factor=2.0), fine], 1))
        level4 = self.out4(torch.cat([self.path4(level3), up], 1))
        level5 = self.out5(torch.cat([self.path5(level4), coarse], 1))
        towers = [self.tower(enter(level)) for enter, level in zip(self.enter, (level3, level4, level5), strict=True)]
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
