"""Anchors: the centres of the cells of the three strides, in the order of the networks' maps."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

STRIDES = (8, 16, 32)


class Anchors(NamedTuple):
    """The anchors of one image size.

    Attributes:
        points: (A, 2), x and y of the centres in pixels, float32.
        strides: (A,) in pixels, float32.
    """

    points: torch.Tensor
    strides: torch.Tensor


@lru_cache(maxsize=64)
def anchors(height: int, width: int, device: torch.device) -> Anchors:
    """The anchors of images of `height` and `width`, multiples of 32: stride 8 first, each level row by row.

    Made on the device itself, without waiting for it, and once for each size.
    """
    # Validation runs in inference mode, whose tensors autograd would refuse later.
    with torch.inference_mode(False):
        levels = [_level(height // stride, width // stride, stride, device) for stride in STRIDES]
        return Anchors(*(torch.cat(parts) for parts in zip(*levels, strict=True)))


def _level(rows: int, columns: int, stride: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    y = (torch.arange(rows, device=device, dtype=torch.float32) + 0.5) * stride
    x = (torch.arange(columns, device=device, dtype=torch.float32) + 0.5) * stride
    points = torch.stack([x.expand(rows, columns), y[:, None].expand(rows, columns)], -1).reshape(-1, 2)
    return points, torch.full((rows * columns,), float(stride), device=device)
