"""What the four LightningModules share: optimizer, schedule, average of weights, metric, replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from graphreplay.callback import ReplayCallback
from graphreplay.report import Report
from graphreplay.tasks.batch import Batch, Predictions
from graphreplay.tasks.losses import Loss
from graphreplay.tasks.modules.average import average_of, follow
from graphreplay.tasks.modules.optimizers import optimizer_of
from graphreplay.tasks.modules.options import FitOptions
from graphreplay.tasks.modules.schedule import warmup_cosine


class TaskModule(LightningModule):
    """Trains a task's network on `Batch`es, and validates the average of its weights.

    Logs `train/loss`, the mean of an epoch, and `val/map50` and `val/map`: mean average precision at an overlap of 0.5,
    and over 0.5 to 0.95. The network gives raw maps; the loss is outside of it, and is never replayed.

    Args:
        network: The network.
        options: See `FitOptions`.
    """

    def __init__(self, network: nn.Module, options: FitOptions) -> None:
        super().__init__()
        self.options = options
        self.network = network
        self.average = average_of(network)
        self._metric: Any = None
        self._averaged = 0
        self._replaying: ReplayCallback | None = None

    def loss(self, maps: Any, batch: Batch) -> Loss:
        """The task's loss of what the network gives for a batch."""
        raise NotImplementedError

    def predictions(self, maps: Any, size: tuple[int, int]) -> list[Predictions]:
        """The objects of each image, of `size` (height, width), in what the network gives."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> TaskModule:
        """As ever, but for the average, which is never trained."""
        super().train(mode)
        self.average.eval()
        return self

    def forward(self, images: torch.Tensor) -> list[Predictions]:
        """What the average of the weights finds in images (B, 3, H, W)."""
        height, width = images.shape[2:]
        return self.predictions(self.average(images), (height, width))

    def note(self, loss: Loss) -> None:
        """Keep of a batch's loss what is looked at later."""

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        loss = self.loss(self.network(batch.images), batch)
        self.note(loss)
        self.log("train/loss", loss.total.detach(), on_step=False, on_epoch=True, batch_size=len(batch.images))
        return loss.total

    def on_train_start(self) -> None:
        """Take up a resumed fit."""
        self._averaged = self.trainer.global_step

    def on_train_batch_end(self, *_: Any) -> None:
        """After an optimizer step, and not within a window, move the average."""
        if self.trainer.global_step != self._averaged:
            self._averaged = self.trainer.global_step
            follow(self.average, self.network, self.options.ema_decay, self._averaged)

    def validation_step(self, batch: Batch, _: int) -> None:
        self._metric.update(self(batch.images), batch)

    def on_validation_epoch_start(self) -> None:
        self._metric.reset()

    def on_validation_epoch_end(self) -> None:
        self.log_dict({f"val/{name}": value for name, value in self._metric.compute().items()})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = optimizer_of(self.network, self.options)
        share = warmup_cosine(self.options.warmup_steps, self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_callbacks(self) -> Sequence[Callback]:
        if self.options.captured is None:
            return []
        self._replaying = ReplayCallback(self.options.captured, **self.options.replay)
        return [self._replaying]

    def replay_report(self) -> Report:
        """What was replayed in the last fit, and why not; empty where nothing was to be captured."""
        return Report((), ()) if self._replaying is None else self._replaying.report()
