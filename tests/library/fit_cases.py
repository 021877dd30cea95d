"""A small LightningModule, a weight average that validation sees, and scenarios of both, for the fits on the GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from replay_cases import Small, images, squares

from graphreplay.optim import MuSGD
from graphreplay.testing import Scenario

PRECISIONS = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
OPTIMIZERS: Mapping[str, Callable[[torch.nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda network: torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda network: torch.optim.AdamW(network.parameters(), 0.003),
    "musgd": lambda network: MuSGD(MuSGD.groups(network, weight_decay=0.01), lr=0.02),
}
# Three input layouts; the last is a batch of one.
SHAPES = ((2, 12), (3, 16), (1, 12))


class SmallModule(LightningModule):
    """Trains a `Small` network, with a learning rate that is another one at every step.

    Args:
        optimizer: One of `OPTIMIZERS`.
        infinite_at: The batch whose loss is infinite.
        set_to_none: How gradients are cleared.
    """

    def __init__(self, optimizer: str = "sgd", infinite_at: int | None = None, set_to_none: bool = True) -> None:
        super().__init__()
        self.network = Small()
        self.optimizer = optimizer
        self.infinite_at = infinite_at
        self.set_to_none = set_to_none

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = squares(self.network(batch))
        return loss * math.inf if index == self.infinite_at else loss

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.log("validation_loss", squares(self.network(batch)), batch_size=len(batch))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = OPTIMIZERS[self.optimizer](self.network)
        # Not by overriding the module's hook, which Lightning's accumulation scheduler warns of.
        optimizer.zero_grad = partial(optimizer.zero_grad, set_to_none=self.set_to_none)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1.0, 0.1, 0.5)[step % 3] * 0.99**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Averaging(Callback):
    """An exponential average of the network's weights. For validation both swap their memory.

    Args:
        take_at: The batch before which the weights become the average, in fresh memory, for good.
    """

    def __init__(self, take_at: int | None = None) -> None:
        self.take_at = take_at
        self.means: list[torch.Tensor] = []
        self._steps = 0

    def on_fit_start(self, _trainer: Trainer, module: LightningModule) -> None:
        weights = list(module.network.parameters())
        # Those of a checkpoint come before, and on the CPU.
        kept = self.means or [weight.detach() for weight in weights]
        self.means = [mean.to(weight.device, copy=True) for mean, weight in zip(kept, weights, strict=True)]

    def on_train_batch_start(self, _trainer: Trainer, module: LightningModule, _batch: Any, index: int) -> None:
        if index == self.take_at:
            for weight, mean in zip(module.network.parameters(), self.means, strict=True):
                weight.data = mean.clone()

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            for weight, mean in zip(module.network.parameters(), self.means, strict=True):
                mean.lerp_(weight.detach(), 0.1)

    def on_validation_start(self, _trainer: Trainer, module: LightningModule) -> None:
        self._swap(module)

    def on_validation_end(self, _trainer: Trainer, module: LightningModule) -> None:
        self._swap(module)

    def _swap(self, module: LightningModule) -> None:
        for index, weight in enumerate(module.network.parameters()):
            weight.data, self.means[index] = self.means[index], weight.data

    def state_dict(self) -> dict[str, Any]:
        return {"means": list(self.means), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.means, self._steps = state["means"], state["steps"]


def image_batches(steps: int, shapes: Sequence[tuple[int, int]] = SHAPES, first: int = 0) -> list[torch.Tensor]:
    """Batches on the CPU, whose (count, size) go round through `shapes`."""
    forms = [shapes[step % len(shapes)] for step in range(steps)]
    return [images(count, first + step, size) for step, (count, size) in enumerate(forms)]


def small_scenario(
    steps: int,
    precision: str = "fp32",
    shapes: Sequence[tuple[int, int]] = SHAPES,
    module: Callable[[], LightningModule] = SmallModule,
    validation: int = 0,
    **trainer: Any,
) -> Scenario:
    """A fit of the small module on the GPU, `steps` batches an epoch, with as many `validation` batches each time."""
    return Scenario(
        module=module,
        batches=lambda: image_batches(steps, shapes),
        validation=(lambda: image_batches(validation, shapes, first=1000)) if validation else None,
        trainer={"accelerator": "cuda", "devices": 1, "max_epochs": 1, "precision": PRECISIONS[precision], **trainer},
    )
