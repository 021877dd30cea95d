"""Convex polygons to pixels, in whole numbers alone: the same pixels on every machine.

A pixel belongs to a polygon when its centre lies inside or on the edge. With corners in clockwise order on the screen
(y points down), a point p is inside when no edge function cross(edge, p - corner) is negative. Along a row each is
linear in x, so a row of a convex polygon is one span, whose ends are exact floor divisions.
"""

from __future__ import annotations

import torch

from graphreplay.tasks.batch import MASK_STRIDE
from graphreplay.tasks.scenes.shapes import GRAIN


def spans(polygons: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """First and one past the last pixel of each row of each polygon: (..., 2, height) int64; equal in an empty row.

    Args:
        polygons: (..., corners, 2) int64: x, y in sixteenths of a pixel. Corners may repeat.
        height: Rows of the image.
        width: Pixels of a row; spans are cut at 0 and here.
    """
    x, y = polygons[..., 0, None], polygons[..., 1, None]
    run, rise = x.roll(-1, -2) - x, y.roll(-1, -2) - y
    rows = torch.arange(height) * GRAIN + GRAIN // 2
    # The edge function of pixel i's centre is rest - slope * i.
    slope = rise * GRAIN
    rest = run * (rows - y) + rise * (x - GRAIN // 2)
    bound = torch.div(rest, torch.where(slope == 0, 1, slope), rounding_mode="floor")
    ends = torch.where(slope > 0, bound + 1, width)
    ends = torch.where((slope == 0) & (rest < 0), 0, ends).amin(-2).clamp(0, width)
    # slope < 0: i >= rest / slope, rounded up
    upward = -torch.div(-rest, torch.where(slope < 0, slope, -1), rounding_mode="floor")
    starts = torch.where(slope < 0, upward, 0).amax(-2).clamp_min(0)
    return torch.stack([torch.minimum(starts, ends), ends], -2)


def cover(rows: torch.Tensor, width: int) -> torch.Tensor:
    """The pixels of spans (..., 2, height): (..., height, width) bool."""
    start, end = rows.to(torch.int16).unsqueeze(-1).unbind(-3)
    pixels = torch.arange(width, dtype=torch.int16)
    return (pixels >= start) & (pixels < end)


def boxes(rows: torch.Tensor) -> torch.Tensor:
    """The tight box of the pixels of spans (N, 2, height): (N, 4) int64, x1, y1, x2, y2. No spans may all be empty."""
    start, end = rows.unbind(1)
    height = rows.size(2)
    filled = end > start
    y = torch.arange(height)
    return torch.stack(
        [
            torch.where(filled, start, torch.iinfo(torch.int64).max).amin(1),
            torch.where(filled, y, height).amin(1),
            torch.where(filled, end, 0).amax(1),
            torch.where(filled, y + 1, 0).amax(1),
        ],
        1,
    )


def coarse(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Masks (N, height / 4, width / 4) uint8 of spans (N, 2, height): 1 where half the pixels or more are covered."""
    start, end = rows.to(torch.int16).unsqueeze(-1).unbind(1)
    left = torch.arange(0, width, MASK_STRIDE, dtype=torch.int16)
    covered = (torch.minimum(end, left + MASK_STRIDE) - torch.maximum(start, left)).clamp_min_(0)
    blocks = covered.view(len(rows), rows.size(2) // MASK_STRIDE, MASK_STRIDE, left.numel()).sum(2, dtype=torch.int16)
    return (blocks >= MASK_STRIDE**2 // 2).to(torch.uint8)
