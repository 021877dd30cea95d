"""Backbone and neck: what the four tasks share."""

from __future__ import annotations

import torch
from torch import nn

from graphreplay.tasks.networks.blocks import Conv, CrossStage, Pyramid, doubled

Levels = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Trunk(nn.Module):
    """Images (B, 3, H, W) to features at strides 8, 16 and 32: (B, channels[i], H / stride, W / stride) each.

    A cross-stage-partial backbone and a path aggregation neck (arXiv 1803.01534), as in YOLOv8.

    Args:
        width: Channels after the stem; they double with each halving of the image.
        dropout: Probability with which channels of the coarsest level are dropped before the neck.
    """

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        w = [width * 2**level for level in range(5)]
        self.channels = (w[2], w[3], w[4])
        self.stem = Conv(3, w[0], 3, 2)
        self.down2 = nn.Sequential(Conv(w[0], w[1], 3, 2), CrossStage(w[1], w[1]))
        self.down3 = nn.Sequential(Conv(w[1], w[2], 3, 2), CrossStage(w[2], w[2]))
        self.down4 = nn.Sequential(Conv(w[2], w[3], 3, 2), CrossStage(w[3], w[3]))
        self.down5 = nn.Sequential(Conv(w[3], w[4], 3, 2), CrossStage(w[4], w[4]), Pyramid(w[4]))
        self.dropout = nn.Dropout2d(dropout) if dropout else nn.Identity()
        self.up4 = CrossStage(w[4] + w[3], w[3])
        self.up3 = CrossStage(w[3] + w[2], w[2])
        self.path4 = Conv(w[2], w[2], 3, 2)
        self.out4 = CrossStage(w[2] + w[3], w[3])
        self.path5 = Conv(w[3], w[3], 3, 2)
        self.out5 = CrossStage(w[3] + w[4], w[4])

    def forward(self, images: torch.Tensor) -> Levels:
        fine = self.down3(self.down2(self.stem(images)))
        middle = self.down4(fine)
        coarse = self.dropout(self.down5(middle))
        up = self.up4(torch.cat([doubled(coarse), middle], 1))
        level3 = self.up3(torch.cat([doubled(up), fine], 1))
        level4 = self.out4(torch.cat([self.path4(level3), up], 1))
        level5 = self.out5(torch.cat([self.path5(level4), coarse], 1))
        return level3, level4, level5
