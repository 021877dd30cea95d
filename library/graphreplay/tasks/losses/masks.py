"""Masks from prototypes and coefficients (YOLACT, arXiv 1904.02689)."""

from __future__ import annotations

import torch
from torch.nn import functional

from graphreplay.tasks.batch import MASK_STRIDE
from graphreplay.tasks.losses.assignment import Assignment


def mask_logits(coefficients: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
    """Coefficients (B, N, C) and prototypes (B, C, h, w) to (B, N, h, w)."""
    return torch.bmm(coefficients, prototypes.flatten(2)).unflatten(2, prototypes.shape[2:])


def within(boxes: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Which pixels of a mask have their centre in boxes (..., 4) of the image: (..., height, width) bool."""
    x = (torch.arange(width, device=boxes.device) + 0.5) * MASK_STRIDE
    y = ((torch.arange(height, device=boxes.device) + 0.5) * MASK_STRIDE)[:, None]
    x1, y1, x2, y2 = boxes[..., None, None].unbind(-3)
    return (x >= x1) & (x < x2) & (y >= y1) & (y < y2)


def mask_loss(
    coefficients: torch.Tensor, prototypes: torch.Tensor, masks: torch.Tensor, boxes: torch.Tensor, found: Assignment
) -> torch.Tensor:
    """Binary cross-entropy of the masks of all anchors that answer for an object, inside of the object's box and
    divided by its area; the mean over those anchors, 0 without any.

    A mask is computed for every candidate of every place, so that no shape depends on the assignment.

    Args:
        coefficients: (B, C, A).
        prototypes: (B, C, H / 4, W / 4).
        masks: (B, M, H / 4, W / 4), 0 or 1.
        boxes: (B, M, 4) in pixels of the image.
        found: Of these objects to these anchors.
    """
    # By a product and not by `gather`: its backward scatters, see `assign`.
    chosen = torch.bmm(found.picks.flatten(1, 2).to(coefficients.dtype), coefficients.transpose(1, 2))
    logits = mask_logits(chosen, prototypes).unflatten(1, found.kept.shape[1:])
    truth = masks.to(logits.dtype)[:, :, None].expand_as(logits)
    crop = within(boxes, *prototypes.shape[2:])
    entropy = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none") * crop[:, :, None]
    area = crop.sum((2, 3)).clamp(min=1)
    each = entropy.sum((3, 4)) / area[:, :, None]
    return (each * found.kept).sum() / found.kept.sum().clamp(min=1)
