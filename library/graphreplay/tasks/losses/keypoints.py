"""Keypoints: similarity as in COCO's metric, and the likelihood of the residual."""

from __future__ import annotations

import torch

from graphreplay.tasks.anchors import Anchors

# The distance, in shares of the object's size, over which similarity falls to exp(-1/2).
SPREAD = 0.1
# Scales are between these, in shares of the object's size. Without a least one, the likelihood has no bound.
_LEAST, _MOST = 0.01, 1.0


def decode_keypoints(keypoints: torch.Tensor, anchors: Anchors) -> torch.Tensor:
    """Raw (B, 2 K, A), from the anchors in strides, to (B, A, K, 2): x and y in pixels."""
    steps = keypoints.transpose(1, 2).unflatten(2, (-1, 2))
    return anchors.points[:, None] + steps * anchors.strides[:, None, None]


def decode_scales(scales: torch.Tensor) -> torch.Tensor:
    """Raw (B, 2 K, A) to (B, A, K, 2): the Laplace scales of x and y, in shares of the object's size."""
    return (_LEAST + (_MOST - _LEAST) * scales.sigmoid()).transpose(1, 2).unflatten(2, (-1, 2))


def similarity_loss(points: torch.Tensor, targets: torch.Tensor, area: torch.Tensor) -> torch.Tensor:
    """1 - exp(-d^2 / (2 area SPREAD^2)), the keypoint similarity of COCO's metric, d the distance in pixels.

    Args:
        points: (..., K, 2), predicted, in pixels.
        targets: (..., K, 2) likewise.
        area: (...) of the object, in square pixels.

    Returns:
        (..., K), 0 to 1.
    """
    squared = (points - targets).square().sum(-1)
    return 1 - (-squared / (2 * SPREAD**2 * area[..., None])).exp()


def residual_loss(
    points: torch.Tensor, scales: torch.Tensor, targets: torch.Tensor, area: torch.Tensor
) -> torch.Tensor:
    """The negative log-likelihood of the residual r, in shares of the object's size, under a Laplace distribution with
    the predicted scale s: log(2 s) + |r| / s, the mean of x and y.

    It is the base density of residual log-likelihood estimation (RLE, arXiv 2107.11291, equation 8), without the
    learned flow by which the paper bends it. Negative where predictions are sure and right.

    Args:
        points: (..., K, 2), predicted, in pixels.
        scales: (..., K, 2), of `decode_scales`.
        targets: (..., K, 2) in pixels.
        area: (...) of the object, in square pixels.

    Returns:
        (..., K).
    """
    residual = (points - targets).abs() / area.sqrt()[..., None, None]
    return ((2 * scales).log() + residual / scales).mean(-1)
