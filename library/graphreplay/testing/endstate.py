"""All that a fit leaves behind, as named tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from lightning.pytorch import LightningModule, Trainer

from graphreplay.testing.bits import Difference, compare


@dataclass(frozen=True)
class EndState:
    """A fit's end.

    Attributes:
        tensors: Weights, buffers, gradients, optimizer, scaler, scheduler, callbacks, metrics and random generators,
            on the CPU. A weight without gradient has no entry, so that None and zeros differ.
        losses: One value a training step, in order.
    """

    tensors: Mapping[str, torch.Tensor]
    losses: torch.Tensor

    def difference(self, other: EndState) -> Difference | None:
        """How `other` differs from this one, bit by bit."""
        found = compare({**self.tensors, "loss": self.losses}, {**other.tensors, "loss": other.losses})
        return found and replace(found, step=self._first_step(other))

    def _first_step(self, other: EndState) -> int | None:
        pairs = zip(self.losses, other.losses, strict=False)
        return next((step for step, (mine, theirs) in enumerate(pairs) if compare({"": mine}, {"": theirs})), None)

    def first_nonfinite(self) -> tuple[int | None, str] | None:
        """The first step whose loss is not finite and its name, or no step and the name of a weight that is not."""
        for step, loss in enumerate(self.losses):
            if not loss.isfinite():
                return step, "loss"
        weights = (item for item in self.tensors.items() if item[0].startswith("module."))
        return next(((None, name) for name, value in weights if not value.isfinite().all()), None)


def collect(trainer: Trainer, module: LightningModule, losses: list[torch.Tensor]) -> EndState:
    """The end state of a fit that has just ended."""
    tensors: dict[str, torch.Tensor] = {}
    for name, part in _parts(trainer, module):
        tensors.update((key, value.detach().cpu().clone()) for key, value in _leaves(name, part))
    return EndState(tensors, torch.stack([loss.detach().cpu() for loss in losses]) if losses else torch.empty(0))


def _parts(trainer: Trainer, module: LightningModule) -> Iterator[tuple[str, object]]:
    yield "module", dict(module.state_dict())
    yield "gradient", {name: weight.grad for name, weight in module.named_parameters()}
    yield "optimizer", [optimizer.state_dict() for optimizer in trainer.optimizers]
    yield "scheduler", [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    yield "scaler", scaler and scaler.state_dict()
    yield "callback", {type(callback).__name__: callback.state_dict() for callback in trainer.callbacks}
    yield "metric", dict(trainer.callback_metrics)
    yield "random.cpu", torch.get_rng_state()
    yield "random.python", torch.tensor(random.getstate()[1])
    if torch.cuda.is_available():
        yield "random.cuda", torch.cuda.get_rng_state_all()


def _leaves(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors and numbers in a nested state, by dotted names. What is neither has no bits and is left out."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (bool, int, float)):
        yield name, torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{name}.{index}", item)
