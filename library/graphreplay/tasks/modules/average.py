"""The exponential moving average of a network's weights, which validation sees."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

# Updates over which the average opens up to the past: its first values are of weights that know nothing.
_OPENING = 100


def average_of(network: nn.Module) -> nn.Module:
    """A copy to hold the average, without gradients."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, decay: float, updates: int) -> None:
    """Move `average` towards `network`: a <- d a + (1 - d) n with d = decay (1 - exp(-updates / 100)).

    Counters, which are whole numbers, are copied. Nothing waits for the GPU.

    Args:
        average: What `average_of` made of the network.
        network: As it is after a step.
        decay: d in the long run.
        updates: Optimizer steps so far, this one included.
    """
    # Not the state dicts: those cost a walk through the tree with hooks, and detach every tensor.
    means = [*average.parameters(), *average.buffers()]
    news = [*network.parameters(), *network.buffers()]
    pairs = list(zip(means, news, strict=True))
    moving = [pair for pair in pairs if pair[0].is_floating_point()]
    share = 1 - decay * (1 - math.exp(-updates / _OPENING))
    torch._foreach_lerp_([mean for mean, _ in moving], [new for _, new in moving], share)
    counters = [pair for pair in pairs if not pair[0].is_floating_point()]
    torch._foreach_copy_([mean for mean, _ in counters], [new for _, new in counters])
