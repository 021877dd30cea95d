"""The network that the benchmarks train: YOLO-like, some 100 matrices at depth 3, with its loss and random batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from graphreplay.tasks.networks.blocks import Conv, Pyramid

BINS, CLASSES, STRIDES = 16, 5, (8, 16, 32)

Batch = tuple[torch.Tensor, list[torch.Tensor]]


class CrossStages(nn.Module):
    """A cross-stage-partial block with `depth` residual pairs, whose results are all kept."""

    def __init__(self, inputs: int, outputs: int, depth: int) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = Conv(inputs, outputs, 1)
        self.pairs = nn.ModuleList(nn.Sequential(Conv(half, half), Conv(half, half)) for _ in range(depth))
        self.leave = Conv((2 + depth) * half, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for pair in self.pairs:
            parts.append(parts[-1] + pair(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Detector(nn.Module):
    """Images (batch, 3, height, width) to three maps (batch, 4 BINS + CLASSES, height / s, width / s), s of `STRIDES`.

    Args:
        width: Channels after the stem. Height and width of images must be multiples of 32.
        depth: Residual pairs in a block; the two blocks in the middle have twice as many.
    """

    def __init__(self, width: int = 16, depth: int = 1) -> None:
        super().__init__()
        w = [width * 2**level for level in range(5)]
        self.stem = Conv(3, w[0], 3, 2)
        self.down2 = nn.Sequential(Conv(w[0], w[1], 3, 2), CrossStages(w[1], w[1], depth))
        self.down3 = nn.Sequential(Conv(w[1], w[2], 3, 2), CrossStages(w[2], w[2], 2 * depth))
        self.down4 = nn.Sequential(Conv(w[2], w[3], 3, 2), CrossStages(w[3], w[3], 2 * depth))
        self.down5 = nn.Sequential(Conv(w[3], w[4], 3, 2), CrossStages(w[4], w[4], depth), Pyramid(w[4]))
        self.up4 = CrossStages(w[4] + w[3], w[3], depth)
        self.up3 = CrossStages(w[3] + w[2], w[2], depth)
        self.path4 = Conv(w[2], w[2], 3, 2)
        self.out4 = CrossStages(w[2] + w[3], w[3], depth)
        self.path5 = Conv(w[3], w[3], 3, 2)
        self.out5 = CrossStages(w[3] + w[4], w[4], depth)
        self.boxes = nn.ModuleList(_head(channels, 4 * BINS) for channels in w[2:])
        self.classes = nn.ModuleList(_head(channels, CLASSES) for channels in w[2:])

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fine = self.down3(self.down2(self.stem(images)))
        middle = self.down4(fine)
        coarse = self.down5(middle)
        up = self.up4(torch.cat([functional.interpolate(coarse, scale_factor=2.0), middle], 1))
        level3 = self.up3(torch.cat([functional.interpolate(up, scale_factor=2.0), fine], 1))
        level4 = self.out4(torch.cat([self.path4(level3), up], 1))
        level5 = self.out5(torch.cat([self.path5(level4), coarse], 1))
        levels = (level3, level4, level5)
        return tuple(
            torch.cat([box(level), kind(level)], 1)
            for box, kind, level in zip(self.boxes, self.classes, levels, strict=True)
        )


def _head(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Conv(inputs, 64), Conv(64, 64), nn.Conv2d(64, outputs, 1))


def loss_of(outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """Smooth L1 of the expected box distances plus binary cross-entropy of the classes, in float32, eagerly."""
    total = torch.zeros((), device=outputs[0].device)
    for output, target in zip(outputs, targets, strict=True):
        boxes, classes = output.float().split([4 * BINS, CLASSES], 1)
        share = boxes.reshape(boxes.shape[0], 4, BINS, -1).softmax(2)
        bins = torch.arange(BINS, device=output.device, dtype=share.dtype).view(1, 1, -1, 1)
        total = total + functional.smooth_l1_loss((share * bins).sum(2), target[:, :4].flatten(2))
        total = total + functional.binary_cross_entropy_with_logits(classes, target[:, 4:])
    return total


def batch_of(count: int, height: int, width: int, device: str, seed: int) -> Batch:
    """Images and target maps of values in 0 to 1, the same for the same seed and device."""
    random = torch.Generator(device).manual_seed(seed)
    images = torch.rand(count, 3, height, width, device=device, generator=random)
    sizes = [(count, 4 + CLASSES, height // s, width // s) for s in STRIDES]
    return images, [torch.rand(size, device=device, generator=random) for size in sizes]
