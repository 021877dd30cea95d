"""Which anchors answer for which object: task-aligned assignment (TOOD, arXiv 2108.07755)."""

from __future__ import annotations

from typing import NamedTuple

import torch

# The candidates of each object, and the powers of score and overlap in their alignment, as YOLOv8 has them.
CANDIDATES = 10
SCORE_POWER = 0.5
OVERLAP_POWER = 6.0
_TINY = 1e-9


class Assignment(NamedTuple):
    """Who answers for what, of B images with A anchors and M places of objects each.

    Attributes:
        positive: (B, A) bool: anchors that answer for an object.
        owner: (B, A) int64: that object's place; 0 where there is none.
        alignment: (B, A): the score each anchor should give, 0 to 1; 0 where it answers for nothing.
        candidates: (B, M, k) int64: the anchors that each place chose from, all different within a place.
        kept: (B, M, k) bool: which of those answer for it. Each positive anchor is kept by one place exactly.
    """

    positive: torch.Tensor
    owner: torch.Tensor
    alignment: torch.Tensor
    candidates: torch.Tensor
    kept: torch.Tensor

    def of_owner(self, values: torch.Tensor) -> torch.Tensor:
        """For each anchor the value of its object: (B, M, ...) to (B, A, ...)."""
        shape = self.owner.shape + values.shape[2:]
        index = self.owner.reshape(self.owner.shape + (1,) * (values.dim() - 2)).expand(shape)
        return values.gather(1, index)

    def total(self) -> torch.Tensor:
        """The sum of alignments, at least 1: what losses are divided by. It stays on the device."""
        return self.alignment.sum().clamp(min=1.0)


@torch.no_grad()
def assign(
    scores: torch.Tensor, overlaps: torch.Tensor, inside: torch.Tensor, classes: torch.Tensor, present: torch.Tensor
) -> Assignment:
    """Each object takes the anchors inside of it that are best aligned, score^0.5 times overlap^6, at most 10; an
    anchor taken by several objects stays with the one it overlaps most.

    Alignments are scaled so that an object's best anchor has the object's largest overlap (section 3.2 of the paper).

    Args:
        scores: (B, classes, A), probabilities.
        overlaps: (B, M, A), 0 to 1, of each object with what each anchor predicts.
        inside: (B, M, A) bool: whether the anchor's centre is inside of the object.
        classes: (B, M) int64.
        present: (B, M) bool: which places hold an object.
    """
    own = scores.gather(1, classes[:, :, None].expand_as(overlaps))
    metric = own.pow(SCORE_POWER) * overlaps.pow(OVERLAP_POWER)
    allowed = inside & present[:, :, None]
    best = metric.masked_fill(~allowed, -1.0).topk(min(CANDIDATES, metric.size(2)), 2)
    chosen = torch.zeros_like(allowed).scatter(2, best.indices, best.values >= 0)
    owner = overlaps.masked_fill(~chosen, -1.0).argmax(1)
    positive = chosen.any(1)
    kept = (best.values >= 0) & (_of(owner, best.indices) == _places(owner, best.indices))
    return Assignment(
        positive, owner, _alignment(metric, overlaps, owner, positive, best.indices, kept), best.indices, kept
    )


def _of(owner: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """The owner of each candidate: (B, A) and (B, M, k) to (B, M, k)."""
    return owner.gather(1, candidates.flatten(1)).view_as(candidates)


def _places(owner: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    return torch.arange(candidates.size(1), device=owner.device)[:, None]


def _alignment(
    metric: torch.Tensor,
    overlaps: torch.Tensor,
    owner: torch.Tensor,
    positive: torch.Tensor,
    candidates: torch.Tensor,
    kept: torch.Tensor,
) -> torch.Tensor:
    largest = metric.gather(2, candidates).mul(kept).amax(2, keepdim=True)
    widest = overlaps.gather(2, candidates).mul(kept).amax(2, keepdim=True)
    scaled = metric / largest.clamp(min=_TINY) * widest
    return scaled.gather(1, owner[:, None]).squeeze(1) * positive
