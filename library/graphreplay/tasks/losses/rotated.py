"""Rotated boxes: decoding, and overlap as that of Gaussians.

A box (..., 5) is centre x, centre y, width, height in pixels, and the angle of the width's axis from x towards y in
radians.
"""

from __future__ import annotations

import math

import torch

from graphreplay.tasks.anchors import Anchors
from graphreplay.tasks.losses.boxes import distances, product

_EPS = 1e-7


def decode_angles(angles: torch.Tensor) -> torch.Tensor:
    """Raw (B, 1, A) to radians (B, A), between -pi/4 and 3pi/4: half a turn, which is all that a box's axis has."""
    return (angles.squeeze(1).sigmoid() - 0.25) * math.pi


def decode_rotated(sides: torch.Tensor, angles: torch.Tensor, anchors: Anchors) -> torch.Tensor:
    """Logits of sides (B, 4 bins, A), along the box's own axes, and raw angles (B, 1, A) to boxes (B, A, 5)."""
    low, high = (distances(sides) * anchors.strides[:, None]).chunk(2, -1)
    turn = decode_angles(angles)
    centres = anchors.points + turned((high - low) / 2, turn)
    return torch.cat([centres, low + high, turn[..., None]], -1)


def turned(vectors: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Vectors (..., 2) turned by angles (...), from x towards y."""
    x, y = vectors.unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1)


def from_centre(points: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Points (..., 2) along the axes of boxes (..., 5), from their centres."""
    return turned(points - boxes[..., :2], -boxes[..., 4])


def inside_rotated(boxes: torch.Tensor, anchors: Anchors, smallest: float) -> torch.Tensor:
    """Whether the anchors' centres are in the boxes: (B, M, 5) to (B, M, A) bool. See `boxes.inside`."""
    boxes = boxes[:, :, None]
    return (from_centre(anchors.points, boxes).abs() < boxes[..., 2:4].clamp(min=smallest) / 2).all(-1)


def reach(boxes: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Distances of points (..., 2) from the sides of boxes (..., 5): left, top, right, bottom in the box's own axes."""
    away, halves = from_centre(points, boxes), boxes[..., 2:4] / 2
    return torch.cat([halves + away, halves - away], -1)


def probabilistic_iou(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Overlap of rotated boxes (..., 5) as that of Gaussians with their centres and covariances (ProbIoU, arXiv
    2106.06072): 1 - Hellinger distance, (...), 0 to 1. They may broadcast.

    With d the centres' difference, S the sum of the covariances, the Bhattacharyya distance is
    1/4 d' S^-1 d + 1/2 ln(det S / (4 sqrt(det left det right))), and Hellinger's is sqrt(1 - exp(-that)).
    """
    a1, b1, c1 = _covariance(left)
    a2, b2, c2 = _covariance(right)
    a, b, c = a1 + a2, b1 + b2, c1 + c2
    dx, dy = (left[..., :2] - right[..., :2]).unbind(-1)
    whole = (a * b - c * c).clamp(min=_EPS)
    # The root of the product of both determinants, each (area / 12)^2.
    parts = product(left[..., 2:4]) * product(right[..., 2:4]) / 144
    apart = (a * dy * dy + b * dx * dx - 2 * c * dx * dy) / whole / 4
    unlike = (whole / (4 * parts + _EPS) + _EPS).log() / 2
    distance = (apart + unlike).clamp(_EPS, 100.0)
    # The square root's slope at 0 is infinite.
    return 1 - (1 - (-distance).exp() + _EPS).sqrt()


def _covariance(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a uniform density over the box: xx, yy and xy."""
    along, across = (boxes[..., 2:4].square() / 12).unbind(-1)
    cos, sin = boxes[..., 4].cos(), boxes[..., 4].sin()
    return along * cos**2 + across * sin**2, along * sin**2 + across * cos**2, (along - across) * cos * sin
