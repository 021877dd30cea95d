"""The exact intersection of rotated boxes, as tensors of fixed shape, without tolerances.

One box's outline is seen from the other's own axes, where the other is |x| <= width / 2, |y| <= height / 2. Moving what
lies outside of a slab to the slab's nearest edge leaves the part inside as it is, and turns the part outside into lines
without area. So the outline, given corners where it crosses the edges and moved so for x and then for y, encloses
exactly the intersection. The area is continuous in all numbers: boxes that touch, coincide or share an edge are no
special cases.
"""

from __future__ import annotations

import torch


def rotated_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Area of the intersection by that of the union, for all pairs: (..., N, 5) and (..., M, 5) to (..., N, M).

    Boxes are centre x, centre y, width, height, angle, as in `Batch`; widths and heights are not negative.
    """
    return paired_iou(*torch.broadcast_tensors(boxes.unsqueeze(-2), others.unsqueeze(-3)))


def paired_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """The same for pairs: (..., 5) and (..., 5) to (...)."""
    intersection = _intersection(boxes, others)
    union = boxes[..., 2] * boxes[..., 3] + others[..., 2] * others[..., 3] - intersection
    return torch.where(union > 0, intersection / torch.where(union > 0, union, 1), 0)


def _intersection(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Areas of the intersections of pairs (..., 5) and (..., 5): (...)."""
    centre = _turned(boxes[..., :2] - others[..., :2], -others[..., 4])
    outline = centre.unsqueeze(-2) + _corners(boxes[..., 2:4], boxes[..., 4] - others[..., 4])
    x, y = outline.unbind(-1)
    x, y = _cut(x, y, others[..., 2, None] / 2)
    y, x = _cut(y, x, others[..., 3, None] / 2)
    return ((x * y.roll(-1, -1) - x.roll(-1, -1) * y).sum(-1) / 2).clamp_min(0)


def _turned(points: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Points (..., 2) turned by angles (...) about the origin."""
    x, y = points.unbind(-1)
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([x * cosine - y * sine, x * sine + y * cosine], -1)


def _corners(sides: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Corners (..., 4, 2) of boxes with sides (..., 2) about the origin, in the order that makes areas positive."""
    signs = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=sides.dtype, device=sides.device)
    return _turned(signs * (sides / 2).unsqueeze(-2), angle.unsqueeze(-1))


def _cut(along: torch.Tensor, across: torch.Tensor, half: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An outline (..., corners) moved into the slab |along| <= half (..., 1), with three corners for every one."""
    way, drift = along.roll(-1, -1) - along, across.roll(-1, -1) - across
    # Where on the edge, from 0 to 1, it crosses each side of the slab. An edge along the slab crosses neither.
    flat = way == 0
    low, high = (torch.where(flat, 0, (side - along) / torch.where(flat, 1, way)).clamp(0, 1) for side in (-half, half))
    shares = torch.stack([torch.zeros_like(low), torch.minimum(low, high), torch.maximum(low, high)], -1)
    cut = along.unsqueeze(-1) + shares * way.unsqueeze(-1)
    moved = torch.minimum(torch.maximum(cut, -half.unsqueeze(-1)), half.unsqueeze(-1))
    return moved.flatten(-2), (across.unsqueeze(-1) + shares * drift.unsqueeze(-1)).flatten(-2)
