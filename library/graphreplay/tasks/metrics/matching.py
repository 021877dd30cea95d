"""Which predictions are right, as COCO counts: the best one first takes the object that it is most alike."""

from __future__ import annotations

import torch


def matches(similarity: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Whether each prediction gets an object, at each threshold: (B, N, M) and (T,) to (B, N, T) bool.

    Args:
        similarity: Of N predictions, best score first, to M objects; negative where the two cannot match. An object is
            taken once. Of objects that are equally alike the last one is taken.
        thresholds: The least similarity for a match; positive.
    """
    count, found, places = similarity.shape
    hits = torch.zeros(count, found, len(thresholds), dtype=torch.bool)
    if not places:
        return hits
    numbers = torch.arange(places)
    free = torch.ones(count, len(thresholds), places, dtype=torch.bool)
    for place in range(found):
        open_to = torch.where(free, similarity[:, place, None], -1)
        best = open_to.amax(-1, keepdim=True)
        taken = torch.where(open_to == best, numbers, -1).amax(-1, keepdim=True)
        hit = best >= thresholds[:, None]
        free &= ~(hit & (numbers == taken))
        hits[:, place] = hit[..., 0]
    return hits


def ranks(classes: torch.Tensor) -> torch.Tensor:
    """How many predictions of the same class come before each one: (B, N) to (B, N)."""
    same = classes.unsqueeze(-1) == classes.unsqueeze(-2)
    return same.tril(-1).sum(-1)
