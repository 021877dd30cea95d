"""The network that replay attaches to is the one that trains, wherever the LightningModule makes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_cases import ON_DEVICES, perceptron, replay_of, rows, state_of, trainer_on
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

import graphreplay.callback
from graphreplay import OptionError, ReplayCallback, Report
from graphreplay.route import Route
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal


@pytest.fixture(autouse=True)
def rehearsed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request.node, "callspec", None) is None or request.node.callspec.params.get("device") != "cuda":
        monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)


class InInit(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = perceptron()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.network(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.network(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)


class Later(InInit):
    """Makes nothing in `__init__`."""

    def __init__(self) -> None:
        LightningModule.__init__(self)


class InConfigureModel(Later):
    def configure_model(self) -> None:
        if not hasattr(self, "network"):
            self.network = perceptron()


class InSetup(Later):
    def setup(self, stage: str) -> None:  # noqa: ARG002  # Lightning passes it by name.
        if not hasattr(self, "network"):
            self.network = perceptron()


class ReplacedInSetup(InInit):
    def setup(self, stage: str) -> None:  # noqa: ARG002  # Lightning passes it by name.
        self.network = copy.deepcopy(self.network)


class ReplacedInConfigureModel(InInit):
    def configure_model(self) -> None:
        self.network = copy.deepcopy(self.network)


class ReplacedAtFitStart(InInit):
    def on_fit_start(self) -> None:
        self.network = copy.deepcopy(self.network)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), 0.05)


class ReplacedBetweenEpochs(InInit):
    """Its optimizer goes on with the same weights."""

    def on_train_epoch_end(self) -> None:
        twin = copy.deepcopy(self.network)
        for mine, other in zip(twin.modules(), self.network.modules(), strict=True):
            mine._parameters.update(other._parameters)
        self.network = twin


class Maker(Callback):
    """Another callback that makes the network."""

    def setup(self, _trainer: Any, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        if not hasattr(pl_module, "network"):
            pl_module.network = perceptron()


def fitted(
    make: type[LightningModule],
    device: str,
    replay: bool,
    network: str | None = "network",
    others: tuple[Any, ...] = (),
) -> tuple[dict[str, torch.Tensor], list[Report], LightningModule]:
    """Two fits of two epochs each, with validation, also ahead; each time 12 batches, thrice the same layout."""
    torch.manual_seed(1)
    module, reports = make(), []
    callback = ReplayCallback(network)
    for _ in range(2):
        callbacks = [*([callback] if replay else []), *(other() for other in others)]
        trainer = trainer_on(device, max_epochs=2, callbacks=callbacks, num_sanity_val_steps=1)
        trainer.fit(module, DataLoader(rows(24, 0), batch_size=4), DataLoader(rows(4, 1), batch_size=4))
        reports.append(callback.report())
    return state_of(module), reports, module


MAKERS = [
    (InInit, ()), (InConfigureModel, ()), (InSetup, ()), (ReplacedInSetup, ()), (ReplacedInConfigureModel, ()),
    (ReplacedAtFitStart, ()), (Later, (Maker,)),
]  # fmt: skip


@ON_DEVICES
@pytest.mark.parametrize("network", ["network", None])
@pytest.mark.parametrize(("make", "others"), MAKERS)
def test_network_that_trains_is_replayed(
    make: type[LightningModule], others: tuple[Any, ...], network: str | None, device: str
) -> None:
    """In both of two fits; afterwards nothing of replay is left on the module."""
    native, _, _ = fitted(make, device, replay=False, others=others)
    state, reports, module = fitted(make, device, replay=True, network=network, others=others)
    require_equal(native, state)
    for report in reports:
        assert report.retirements == ()
        assert [(one.recorded, one.replayed) for one in report.layouts] == [(1, 11)]
    assert not any(isinstance(vars(one).get("forward"), Route) for one in module.modules())


@ON_DEVICES
def test_network_replaced_between_epochs_is_followed(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """The report is that of the last one; the one before is told when it goes."""
    native, _, _ = fitted(ReplacedBetweenEpochs, device, replay=False)
    state, reports, _ = fitted(ReplacedBetweenEpochs, device, replay=True)
    require_equal(native, state)
    assert [(one.recorded, one.replayed) for report in reports for one in report.layouts] == [(1, 5), (1, 5)]
    assert sum("network='network' is another module now" in one.message for one in caplog.records) == 2


class Untouched:
    """Batches that nobody may ask for."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise AssertionError("a batch was asked for")

    def __len__(self) -> int:
        return 2


class Bare(Later):
    """Never makes a network."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.05)


class Many(InSetup):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.other = perceptron()


@pytest.mark.parametrize(
    ("make", "network", "message"),
    [
        (InInit, "net", "network='net' is no module of InInit; it has network"),
        (InSetup, "net", "network='net' is no module of InSetup; it has network"),
        (InConfigureModel, "automatic_optimization", "network='automatic_optimization' is no module of InConf"),
        (Bare, "network", "network='network' is no module of Bare; it has no children"),
        (Bare, None, "name the network of Bare to replay: network= one of no children"),
        (Many, None, "name the network of Many to replay: network= one of network, other"),
    ],
)
def test_wrong_network_is_refused_before_any_batch(
    make: type[LightningModule], network: str | None, message: str
) -> None:
    trainer = trainer_on("cpu", callbacks=[ReplayCallback(network)], num_sanity_val_steps=1)
    with pytest.raises(OptionError, match=message):
        trainer.fit(make(), Untouched(), Untouched())
    assert trainer.global_step == 0


class OneLine(Later):
    """Without the callback."""

    def configure_model(self) -> None:
        if not hasattr(self, "network"):
            self.network = perceptron()
            self.replay = replay_of(self.network).attach()


def test_one_line_in_configure_model_replays() -> None:
    native, _, _ = fitted(InConfigureModel, "cpu", replay=False)
    state, _, module = fitted(OneLine, "cpu", replay=False)
    require_equal(native, state)
    assert (module.replay.report().recorded, module.replay.report().replayed) == (1, 23)
