"""Heads: from the three levels of features to one row of raw values for each anchor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from graphreplay.tasks.networks.blocks import Conv, doubled

# The share of anchors that hold an object of a class, before anything is learned: arXiv 1708.02002.
_PRIOR = 0.01


class Branch(nn.Module):
    """Features of the three levels to (B, outputs, A), for the A anchors of all levels, in the order of
    `graphreplay.tasks.anchors`.

    Args:
        channels: Channels of each level.
        hidden: Channels between.
        outputs: Values an anchor.
        bias: What the last layer says before it has learned.
    """

    def __init__(self, channels: Sequence[int], hidden: int, outputs: int, bias: float = 0.0) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.Sequential(Conv(width, hidden), Conv(hidden, hidden), _last(hidden, outputs, bias)) for width in channels
        )

    def forward(self, features: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = [level(feature).flatten(2) for level, feature in zip(self.levels, features, strict=True)]
        return torch.cat(rows, 2)


def _last(hidden: int, outputs: int, bias: float) -> nn.Conv2d:
    layer = nn.Conv2d(hidden, outputs, 1)
    nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]  # It has a bias.
    return layer


def class_branch(channels: Sequence[int], classes: int) -> Branch:
    """A branch of class scores, (B, classes, A) in logits, which first finds nearly nothing anywhere."""
    return Branch(channels, channels[0], classes, math.log(_PRIOR / (1 - _PRIOR)))


class Prototypes(nn.Module):
    """Features of stride 8 to mask prototypes of stride 4 (YOLACT, arXiv 1904.02689): (B, prototypes, H / 4, W / 4)."""

    def __init__(self, channels: int, prototypes: int) -> None:
        super().__init__()
        self.enter = Conv(channels, channels)
        self.fine = Conv(channels, channels)
        self.leave = Conv(channels, prototypes, 1)

    def forward(self, level3: torch.Tensor) -> torch.Tensor:
        return self.leave(self.fine(doubled(self.enter(level3))))


class MaskHeads(nn.Module):
    """All that segmentation has beyond detection: the branch of mask coefficients, and the prototypes."""

    def __init__(self, channels: Sequence[int], prototypes: int) -> None:
        super().__init__()
        self.coefficients = Branch(channels, channels[0], prototypes)
        self.prototypes = Prototypes(channels[0], prototypes)

    def forward(
        self, level3: torch.Tensor, level4: torch.Tensor, level5: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Coefficients (B, prototypes, A) and prototypes (B, prototypes, H / 4, W / 4)."""
        return self.coefficients((level3, level4, level5)), self.prototypes(level3)
