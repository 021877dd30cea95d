"""What the four LightningModules share: optimizer, schedule, average of weights, metric, replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from graphreplay.callback import ReplayCallback
from graphreplay.report import Report
from graphreplay.tasks.batch import Batch, Predictions
from graphreplay.tasks.losses import Loss
from graphreplay.tasks.metrics import MeanAveragePrecision
from graphreplay.tasks.modules.average import average_of, follow
from graphreplay.tasks.modules.optimizers import optimizer_of
from graphreplay.tasks.modules.options import FitOptions
from graphreplay.tasks.modules.schedule import steps_of, warmup_cosine


class TaskModule(LightningModule):
    """Trains a task's network on `Batch`es, and validates the average of its weights.

    Logs `train/loss`, the mean of an epoch, and `val/map50` and `val/map`: mean average precision at a similarity of
    0.5, and over 0.5 to 0.95. The network gives raw maps; the loss is outside of it, and is never replayed.

    Args:
        network: The network.
        options: See `FitOptions`.
    """

    # Which of an object's shapes validation compares.
    kind: ClassVar[str]

    def __init__(self, network: nn.Module, options: FitOptions) -> None:
        super().__init__()
        self.save_hyperparameters(asdict(options))
        self.options = options
        self.network = network
        self.average = average_of(network)
        self._precision = MeanAveragePrecision(self.kind)
        self._updates = 0
        self._replaying: ReplayCallback | None = None

    def loss(self, maps: Any, batch: Batch) -> Loss:
        """The task's loss of what the network gives for a batch."""
        raise NotImplementedError

    def predictions(self, maps: Any, size: tuple[int, int]) -> list[Predictions]:
        """The objects of each image, of `size` (height, width), in what the network gives."""
        raise NotImplementedError

    def forward(self, images: torch.Tensor) -> list[Predictions]:
        """What the average of the weights finds in images (B, 3, H, W)."""
        height, width = images.shape[2:]
        training = self.average.training
        # Its norms take no statistics of what it is shown. Not for good: Lightning warns where a fit begins so.
        maps = self.average.eval()(images)
        self.average.train(training)
        return self.predictions(maps, (height, width))

    def note(self, loss: Loss) -> None:
        """Keep of a batch's loss what is looked at later."""

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        loss = self.loss(self.network(batch.images), batch)
        self.note(loss)
        self.log("train/loss", loss.total.detach(), on_step=False, on_epoch=True, batch_size=len(batch.images))
        return loss.total

    def _follow(self, *_: Any) -> None:
        """After an optimizer step, and before any callback may save a checkpoint, move the average.

        A step that the GradScaler skips does not count.
        """
        self._updates += 1
        follow(self.average, self.network, self.options.ema_decay, self._updates)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["average_updates"] = self._updates

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._updates = checkpoint["average_updates"]

    def validation_step(self, batch: Batch, _: int) -> None:
        self._precision.update(self(batch.images), batch)

    def predict_step(self, batch: Batch | torch.Tensor, *_: Any) -> list[Predictions]:
        """What the average of the weights finds in a batch, or in images (B, 3, H, W)."""
        return self(batch.images if isinstance(batch, Batch) else batch)  # type: ignore[no-any-return]

    def on_validation_epoch_start(self) -> None:
        self._precision.reset()

    def on_validation_epoch_end(self) -> None:
        self.log_dict({f"val/{name}": value for name, value in self._precision.compute().items()})

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = optimizer_of(self.network, self.options)
        optimizer.register_step_post_hook(self._follow)
        share = warmup_cosine(self.options.warmup_steps, steps_of(self.trainer))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_callbacks(self) -> Sequence[Callback]:
        if self.options.captured is None:
            return []
        # Lightning asks before a validation too, and the report of the last fit must outlive that.
        if self._replaying is None:
            self._replaying = ReplayCallback(self.options.captured, **self.options.replay)
        return [self._replaying]

    def replay_report(self) -> Report:
        """What was replayed in the last fit, and why not; empty where nothing was to be captured."""
        return Report((), ()) if self._replaying is None else self._replaying.report()
