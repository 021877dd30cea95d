"""The learning rate over a fit, as a share of its largest."""

from __future__ import annotations

import math
from collections.abc import Callable

# The share that is left at the end.
LAST = 0.01


def warmup_cosine(warmup: int, steps: float) -> Callable[[int], float]:
    """The share at a step, counted from 0: a line up, then half a cosine down to `LAST` (arXiv 1608.03983).

    A plain function, so that no checkpoint holds it: a fit that is resumed for more epochs gets their schedule.

    Args:
        warmup: Steps of the line; the first step has the share 1 / `warmup`.
        steps: Optimizer steps of the whole fit; infinite for a rate that stays.
    """
    rest = steps - warmup

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if rest <= 0 or math.isinf(rest):
            return 1.0
        done = min((step - warmup) / rest, 1.0)
        return LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2

    return share
