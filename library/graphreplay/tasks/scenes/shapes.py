"""The shapes that scenes consist of: convex outlines, each with a mark at its front end, in whole numbers.

An outline is given in the shape's own axes: along its length from -UNIT (back) to UNIT (front), and across it from
-UNIT to UNIT. Sines and cosines are rounded to whole numbers once, so that all that follows is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# Positions are in sixteenths of a pixel.
GRAIN = 16
# Directions in a full turn.
TURN = 256
_UNIT_BITS, _TURN_BITS = 10, 14
UNIT = 1 << _UNIT_BITS
COSINES = tuple(round(math.cos(2 * math.pi * step / TURN) * (1 << _TURN_BITS)) for step in range(TURN))
_CORNERS = 16

Points = Sequence[tuple[int, int]]


def _arc(first: int, last: int) -> list[tuple[int, int]]:
    """Corners `first` to `last` of a regular polygon of `_CORNERS` corners in a circle of radius UNIT."""
    angles = [2 * math.pi * corner / _CORNERS for corner in range(first, last + 1)]
    return [(round(UNIT * math.cos(angle)), round(UNIT * math.sin(angle))) for angle in angles]


_HALF = UNIT // 2
# Outline and mark of each class: wedge, bar, oval.
_OUTLINES: tuple[tuple[Points, Points], ...] = (
    ([(UNIT, 0), (-UNIT, UNIT), (-UNIT, -UNIT)], [(UNIT, 0), (0, _HALF), (0, -_HALF)]),
    (
        [(UNIT, -UNIT), (UNIT, UNIT), (-UNIT, UNIT), (-UNIT, -UNIT)],
        [(UNIT, -UNIT), (UNIT, UNIT), (_HALF, UNIT), (_HALF, -UNIT)],
    ),
    (_arc(0, _CORNERS - 1), _arc(-3, 3)),
)
# Front end, back end, and the outline beside the middle, at both sides.
_KEYPOINTS: tuple[Points, ...] = tuple(
    [(UNIT, 0), (-UNIT, 0), (0, side), (0, -side)] for side in (_HALF, UNIT, UNIT)
)  # fmt: skip


def _padded(points: Points) -> list[tuple[int, int]]:
    """As many points for every outline: an edge without length bounds nothing."""
    return [*points, *[points[-1]] * (_CORNERS - len(points))]


# (classes, outline and mark, corners, 2) and (classes, keypoints, 2), int64
OUTLINES = torch.tensor([[_padded(part) for part in parts] for parts in _OUTLINES])
KEYPOINTS = torch.tensor(_KEYPOINTS)


def placed(points: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Points (N, ..., 2) of N shapes' own axes in the image, in sixteenths of a pixel, rounded half up.

    Args:
        points: int64, in UNIT.
        places: (N, 6) int64: centre x, centre y, half the length, half the breadth in sixteenths of a pixel, and the
            cosine and sine of the direction of the length as in `COSINES`.
    """
    shape = (len(places), *[1] * (points.ndim - 2))
    x, y, length, breadth, cosine, sine = (column.view(shape) for column in places.unbind(1))
    along, across = points[..., 0] * length, points[..., 1] * breadth
    bits = _UNIT_BITS + _TURN_BITS
    half = 1 << (bits - 1)
    return torch.stack(
        [
            x + ((along * cosine - across * sine + half) >> bits),
            y + ((along * sine + across * cosine + half) >> bits),
        ],
        -1,
    )
