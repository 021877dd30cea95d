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
        picks: (B, M, k, A) bool: for each place the anchors it chose from, a single True each, all different.
        kept: (B, M, k) bool: which of those answer for it. Each positive anchor is kept by one place exactly.
    """

    positive: torch.Tensor
    owner: torch.Tensor
    alignment: torch.Tensor
    picks: torch.Tensor
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
    # By comparison and not by scatter, which in torch's deterministic mode copies from the host and waits for it.
    picks = best.indices[..., None] == torch.arange(metric.size(2), device=metric.device)
    valid = best.values >= 0
    chosen = (picks & valid[..., None]).any(2)
    owner = overlaps.masked_fill(~chosen, -1.0).argmax(1)
    places = torch.arange(metric.size(1), device=metric.device)[:, None]
    mine = chosen & (owner[:, None] == places)
    alignment = _alignment(metric, overlaps, mine)
    return Assignment(chosen.any(1), owner, alignment, picks, (picks & mine[:, :, None]).any(3))


def _alignment(metric: torch.Tensor, overlaps: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """Of each anchor, (B, A), from what each place has, all (B, M, A)."""
    largest = (metric * mine).amax(2, keepdim=True).clamp(min=_TINY)
    widest = (overlaps * mine).amax(2, keepdim=True)
    return (metric / largest * widest * mine).sum(1)
