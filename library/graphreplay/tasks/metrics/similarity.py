"""How alike N objects and M others are, from 0 to 1: boxes, masks, keypoints. Dimensions in front are of a batch."""

from __future__ import annotations

import torch


def box_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Area of the intersection by that of the union: (..., N, 4) and (..., M, 4) of x1, y1, x2, y2 to (..., N, M).

    A box whose sides are not positive has no area.
    """
    one, other = boxes.unsqueeze(-2), others.unsqueeze(-3)
    sides = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    return _ratio(sides.clamp_min(0).prod(-1), box_area(one), box_area(other))


def box_area(boxes: torch.Tensor) -> torch.Tensor:
    """Areas of boxes (..., 4): (...)."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp_min(0).prod(-1)


def mask_iou(masks: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Pixels in both by pixels in either: masks (..., N, h, w) and (..., M, h, w) of 0 and 1 to (..., N, M) float64.

    The counts are exact up to 2^24 pixels.
    """
    one, other = masks.flatten(-2).float(), others.flatten(-2).float()
    both = (one @ other.mT).double()
    return _ratio(both, one.sum(-1).double().unsqueeze(-1), other.sum(-1).double().unsqueeze(-2))


def keypoint_similarity(
    points: torch.Tensor, others: torch.Tensor, areas: torch.Tensor, sigmas: torch.Tensor
) -> torch.Tensor:
    """Object keypoint similarity (OKS) as COCO defines it: the mean of exp(-d^2 / (2 s^2 (2 sigma)^2)), s^2 the area.

    Args:
        points: (..., N, K, 2) of found objects: x, y in pixels.
        others: (..., M, K, 3) of true objects: x, y, visible. Points that are not visible do not count.
        areas: (..., M) of the true objects, in square pixels.
        sigmas: (K,): how far people's own labels spread, as a share of the object's size.

    Returns:
        (..., N, M); 0 for a true object without a visible point.
    """
    gap = points.unsqueeze(-3) - others[..., :2].unsqueeze(-4)
    spread = 2 * areas[..., None, :, None] * (2 * sigmas) ** 2
    visible = (others[..., 2] > 0).unsqueeze(-3)
    near = torch.exp(-gap.square().sum(-1) / spread.clamp_min(torch.finfo(spread.dtype).tiny))
    return (near * visible).sum(-1) / visible.sum(-1).clamp_min(1)


def _ratio(intersection: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The intersection by the union of two areas; 0 where both are empty."""
    union = one + other - intersection
    return torch.where(union > 0, intersection / torch.where(union > 0, union, 1), 0)
