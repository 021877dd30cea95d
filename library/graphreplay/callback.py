"""Replay in a Lightning fit: one callback in the Trainer."""

from __future__ import annotations

import logging
from operator import attrgetter
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from graphreplay.errors import OptionError
from graphreplay.labels import Label
from graphreplay.network import NetworkReplay
from graphreplay.options import ReplayOptions
from graphreplay.report import Report

_log = logging.getLogger("graphreplay")


class ReplayCallback(Callback):
    """Replays a network of the LightningModule during `fit`, and logs the report once, at its end or failure.

    Nothing of it is saved in a checkpoint, and the module tree stays as it is.

    Args:
        network: The network's attribute path in the LightningModule, like `"model.backbone"`. None takes the only child
            that has weights.
        **options: See `ReplayOptions`.

    Raises:
        OptionError: An option is wrong (here, at once), or `network` leads nowhere (before the fit starts).
    """

    def __init__(self, network: str | None = None, **options: Any) -> None:
        if network is not None and not isinstance(network, str):
            raise OptionError(f"network={type(network).__name__} must be the attribute's path in the LightningModule")
        ReplayOptions.from_keywords(options)
        self._path = network
        self._options = options
        self.replay: NetworkReplay | None = None
        self._running = False

    def setup(self, _trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the network, and refuse what cannot be recorded, before anything trains."""
        if stage == "fit":
            self.replay = NetworkReplay(_find(pl_module, self._path), **self._options)
            self._running = True

    def on_fit_start(self, trainer: Trainer, _module: LightningModule) -> None:
        """Switch replay on."""
        if self.replay is not None:
            self.replay.attach()
            if trainer.world_size > 1:
                self.replay.retire(Label.DISTRIBUTED)

    def on_train_end(self, _trainer: Trainer, _module: LightningModule) -> None:
        """Switch it off, give the memory back, and log the report."""
        self._end()

    def on_exception(self, _trainer: Trainer, _module: LightningModule, _exception: BaseException) -> None:
        """Likewise after a failed or interrupted fit."""
        self._end()

    def teardown(self, _trainer: Trainer, _module: LightningModule, stage: str) -> None:
        """Likewise after a fit with nothing to train, which has no end of its own."""
        if stage == "fit":
            self._end()

    def _end(self) -> None:
        if self.replay is not None and self._running:
            self._running = False
            self.replay.close()
            _log.info("replay of this fit\n%s", self.report())

    def report(self) -> Report:
        """What happened in the last fit."""
        return Report((), ()) if self.replay is None else self.replay.report()


def _find(module: LightningModule, path: str | None) -> nn.Module:
    """The network at `path`.

    Raises:
        OptionError: There is no module there, or no single child to choose from.
    """
    if path is None:
        return _only_child(module)
    try:
        found = attrgetter(path)(module)
    except AttributeError:
        found = None
    if not isinstance(found, nn.Module):
        raise OptionError(f"network={path!r} is no module of {type(module).__name__}; it has {_names(module)}")
    return found


def _only_child(module: LightningModule) -> nn.Module:
    trained = [child for child in module.children() if any(weight.requires_grad for weight in child.parameters())]
    if len(trained) != 1:
        raise OptionError(f"name the network of {type(module).__name__} to replay: network= one of {_names(module)}")
    return trained[0]


def _names(module: LightningModule) -> str:
    return ", ".join(name for name, _ in module.named_children()) or "no children"
