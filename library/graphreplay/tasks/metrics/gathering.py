"""Predictions of a batch's images, fetched to the CPU and side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from graphreplay.tasks.batch import Predictions


class Found(NamedTuple):
    """What was found in B images, padded to N places, best score first, on the CPU.

    Attributes:
        valid: (B, N) bool: which places hold a prediction.
        scores: (B, N) float64.
        classes: (B, N) int64.
        shapes: (B, N, ...): boxes, rotated boxes or keypoints in float64, or masks as bool.
    """

    valid: torch.Tensor
    scores: torch.Tensor
    classes: torch.Tensor
    shapes: torch.Tensor


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the CPU, in float64 where it is of any floating type."""
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def gathered(predictions: Sequence[Predictions], kind: str) -> Found:
    """The predictions of B >= 1 images with their shapes of one kind. Equal scores keep their order."""
    counts = [len(one.scores) for one in predictions]
    scores, classes, shapes = (
        fetched(torch.cat([getattr(one, field) for one in predictions])).split(counts)
        for field in ("scores", "classes", kind)
    )
    orders = [part.sort(descending=True, stable=True).indices for part in scores]
    valid = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    return Found(valid, *(_padded(parts, orders) for parts in (scores, classes, shapes)))


def _padded(parts: Sequence[torch.Tensor], orders: Sequence[torch.Tensor]) -> torch.Tensor:
    ordered = [part[order] for part, order in zip(parts, orders, strict=True)]
    return pad_sequence(ordered, batch_first=True)
