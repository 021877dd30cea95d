"""What the networks are built of. Every operation's backward adds in a fixed order, on CUDA too."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Conv(nn.Sequential):
    """Convolution without bias, batch norm, SiLU: (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(inplace=True),
        )


class CrossStage(nn.Module):
    """A cross-stage-partial block (CSPNet, arXiv 1911.11929), as YOLO has it: one half of the channels goes straight
    through, the other also through a residual pair of convolutions; then all are mixed.

    (B, inputs, H, W) to (B, outputs, H, W); `outputs` is even.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.enter = Conv(inputs, outputs, 1)
        self.inner = nn.Sequential(Conv(half, half), Conv(half, half))
        self.leave = Conv(3 * half, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        straight, turn = self.enter(x).chunk(2, 1)
        return self.leave(torch.cat([straight, turn, turn + self.inner(turn)], 1))


class Pyramid(nn.Module):
    """Spatial pyramid pooling (arXiv 1406.4729) in its fast form: one pooling of 5 x 5, one to three times over.

    (B, width, H, W) to the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = Conv(width, width // 2, 1)
        self.leave = Conv(width * 2, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.enter(x)]
        for _ in range(3):
            levels.append(functional.max_pool2d(levels[-1], 5, 1, 2))
        return self.leave(torch.cat(levels, 1))


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Each pixel as 2 x 2 of its kind: (B, C, H, W) to (B, C, 2H, 2W).

    Not by `interpolate`, whose backward torch refuses in its deterministic mode.
    """
    batch, channels, height, width = x.shape
    spread = x[:, :, :, None, :, None].expand(batch, channels, height, 2, width, 2)
    return spread.reshape(batch, channels, 2 * height, 2 * width)
