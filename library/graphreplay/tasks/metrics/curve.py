"""From right and wrong predictions to average precision."""

from __future__ import annotations

import torch

# Some of these doubles are not the nearest to 0.29 and so on, but COCO's evaluation compares with them: what is found
# of 50 or 100 objects is often just on one.
RECALLS = (*(step * 0.01 for step in range(100)), 1.0)


def average_precision(scores: torch.Tensor, hits: torch.Tensor, objects: int) -> torch.Tensor:
    """The area under the curve of precision over recall, from 101 recalls, of one class: (T,) float64.

    Args:
        scores: (N,) of all predictions of the class, in any images. Equal ones keep their order.
        hits: (N, T) bool: whether each was right, at T thresholds.
        objects: How many there were to find; at least 1.
    """
    right = hits[scores.sort(descending=True, stable=True).indices].T.cumsum(1).double()
    recall = right / objects
    precision = right / torch.arange(1, right.size(1) + 1)
    # The best precision at this recall or a higher one.
    envelope = precision.flip(1).cummax(1).values.flip(1)
    wanted = torch.tensor(RECALLS, dtype=torch.float64).expand(len(recall), -1)
    reached = torch.searchsorted(recall, wanted.contiguous())
    # A recall that is never reached has precision 0.
    return torch.cat([envelope, torch.zeros(len(recall), 1)], 1).gather(1, reached).mean(1)
