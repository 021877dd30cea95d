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
        OptionError: An option is wrong (here, at once), or `network` leads nowhere when the module has been set up
            (at the start of the fit, before it takes any batch).
    """

    def __init__(self, network: str | None = None, **options: Any) -> None:
        if network is not None and not isinstance(network, str):
            raise OptionError(f"network={type(network).__name__} must be the attribute's path in the LightningModule")
        ReplayOptions.from_keywords(options)
        self._path = network
        self._name = network or ""
        self._options = options
        self.replay: NetworkReplay | None = None
        self._running = False

    def setup(self, _trainer: Trainer, _module: LightningModule, stage: str) -> None:
        """Forget the fit before. The network is looked for later: the module's own `setup` and `configure_model`, which
        may make it, or put another one in its place, come after this."""
        if stage == "fit":
            self.replay = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the network, refuse what cannot be recorded, and switch replay on."""
        self._name = _only_child(pl_module) if self._path is None else self._path
        found = _module_at(pl_module, self._name)
        if found is None:
            kind = type(pl_module).__name__
            raise OptionError(f"network={self._name!r} is no module of {kind}; it has {_names(pl_module)}")
        self._start(trainer, found)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go over to the network that trains, where that is another one meanwhile."""
        found = _module_at(pl_module, self._name)
        if self.replay is None or found is None or found is self.replay.network:
            return
        self.replay.close()
        _log.warning("network=%r is another module now; replay of the one before\n%s", self._name, self.report())
        self._start(trainer, found)

    def _start(self, trainer: Trainer, network: nn.Module) -> None:
        self.replay = NetworkReplay(network, **self._options)
        self._running = True
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
        """What happened in the last fit; where its network was replaced between epochs, since then."""
        return Report((), ()) if self.replay is None else self.replay.report()


def _module_at(module: LightningModule, path: str) -> nn.Module | None:
    try:
        found = attrgetter(path)(module)
    except AttributeError:
        return None
    return found if isinstance(found, nn.Module) else None


def _only_child(module: LightningModule) -> str:
    """The name of the only child that has weights to train.

    Raises:
        OptionError: There is none, or more than one.
    """
    weighty = [name for name, child in module.named_children() if any(one.requires_grad for one in child.parameters())]
    if len(weighty) != 1:
        raise OptionError(f"name the network of {type(module).__name__} to replay: network= one of {_names(module)}")
    return weighty[0]


def _names(module: LightningModule) -> str:
    return ", ".join(name for name, _ in module.named_children()) or "no children"
