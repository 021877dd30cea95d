"""The learning rate over a fit, as a share of its largest."""

from __future__ import annotations

import math
from collections.abc import Callable

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

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


def steps_of(trainer: Trainer) -> float:
    """Optimizer steps of the whole fit; infinite for one without an end.

    Lightning estimates them by the accumulation that it has when optimizers are made, which is that of no epoch where a
    `GradientAccumulationScheduler` sets one for each. What other callbacks make of the accumulation cannot be foreseen.
    """
    steps = trainer.estimated_stepping_batches
    planned = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if not planned or epochs is None or epochs < 0 or math.isinf(batches):
        return steps
    windows = sum(math.ceil(batches / planned[-1].get_accumulate_grad_batches(epoch)) for epoch in range(epochs))
    return windows if trainer.max_steps < 0 else min(windows, trainer.max_steps)
