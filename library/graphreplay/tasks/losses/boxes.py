"""Boxes: decoding, overlap, complete IoU, distribution focal loss."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from graphreplay.tasks.anchors import Anchors

_EPS = 1e-7


def distances(sides: torch.Tensor) -> torch.Tensor:
    """The expected distance of each side: logits (B, 4 bins, A) to (B, A, 4), in strides (arXiv 2006.04388)."""
    bins = sides.size(1) // 4
    shares = sides.unflatten(1, (4, bins)).softmax(2)
    steps = torch.arange(bins, device=sides.device, dtype=sides.dtype)
    return (shares * steps[:, None]).sum(2).transpose(1, 2)


def decode(sides: torch.Tensor, anchors: Anchors) -> torch.Tensor:
    """Logits (B, 4 bins, A) to boxes (B, A, 4): x1 y1 x2 y2 in pixels."""
    reach = distances(sides) * anchors.strides[:, None]
    return torch.cat([anchors.points - reach[..., :2], anchors.points + reach[..., 2:]], -1)


def inside(boxes: torch.Tensor, anchors: Anchors, smallest: float) -> torch.Tensor:
    """Whether the anchors' centres are in the boxes: (B, M, 4) to (B, M, A) bool.

    Sides count as at least `smallest` pixels, so that there is an anchor for every object.
    """
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    halves = (boxes[..., 2:] - boxes[..., :2]).clamp(min=smallest) / 2
    away = (anchors.points - centres[:, :, None]).abs()
    return (away < halves[:, :, None]).all(-1)


def iou(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes (..., 4), which may broadcast: (...), 0 to 1."""
    low, high = torch.maximum(left[..., :2], right[..., :2]), torch.minimum(left[..., 2:], right[..., 2:])
    common = product((high - low).clamp(min=0))
    areas = product(left[..., 2:] - left[..., :2]) + product(right[..., 2:] - right[..., :2])
    return common / (areas - common + _EPS)


def product(sides: torch.Tensor) -> torch.Tensor:
    """(..., 2) to (...). The backward of `Tensor.prod` asks the GPU whether there are zeros, and waits."""
    one, other = sides.unbind(-1)
    return one * other


def complete_iou(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Complete IoU (arXiv 1911.08287, equations 7 to 12) of boxes (..., 4): (...), -1.5 to 1.

    IoU - distance^2 / diagonal^2 - a v: the centres' distance, the diagonal of the box around both, and the difference
    v of the aspect ratios, whose weight a is taken as constant in the backward, as in the paper.
    """
    overlap = iou(left, right)
    around = torch.maximum(left[..., 2:], right[..., 2:]) - torch.minimum(left[..., :2], right[..., :2])
    apart = (left[..., :2] + left[..., 2:] - right[..., :2] - right[..., 2:]) / 2
    diagonal = around.square().sum(-1) + _EPS
    v = (4 / math.pi**2) * (_aspect(left) - _aspect(right)).square()
    with torch.no_grad():
        weight = v / (1 - overlap + v + _EPS)
    return overlap - apart.square().sum(-1) / diagonal - weight * v


def _aspect(boxes: torch.Tensor) -> torch.Tensor:
    """The angle of the diagonal. `atan2` has a gradient also where a side is short."""
    width, height = (boxes[..., 2:] - boxes[..., :2]).clamp(min=_EPS).unbind(-1)
    return torch.atan2(width, height)


def side_loss(sides: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Distribution focal loss (arXiv 2006.04388, equation 6): the cross-entropy of each side's distribution with the
    two bins around the true distance, weighted by how near they are; the mean of the four sides.

    Args:
        sides: (B, 4 bins, A) logits.
        targets: (B, A, 4) distances in strides. Those beyond the bins count as the farthest that they can say.

    Returns:
        (B, A).
    """
    bins = sides.size(1) // 4
    logs = functional.log_softmax(sides.unflatten(1, (4, bins)), 2)
    steps = torch.arange(bins, device=sides.device, dtype=sides.dtype)
    aims = targets.clamp(0, bins - 1).transpose(1, 2)[:, :, None]
    shares = (1 - (aims - steps[:, None]).abs()).clamp(min=0)
    return -(shares * logs).sum(2).mean(1)
