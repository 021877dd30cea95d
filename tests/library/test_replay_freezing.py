"""Weights that are frozen and thawed in the middle of a fit: each set of them is a layout, and none ends the replay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from device_cases import DEVICES, ON_DEVICES, perceptron, replay_of, replayed, rows, state_of, trainer_on
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from torch import nn
from torch.utils.data import DataLoader

import graphreplay.callback
from graphreplay import ReplayCallback, Report
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal


def learn(network: nn.Module, seed: int) -> None:
    device = next(network.parameters()).device
    network(rows(5, seed, device)).square().mean().backward()


def discriminate(network: nn.Module, seed: int) -> None:
    """A generator's part in its discriminator's step."""
    network.requires_grad_(False)
    network(rows(5, seed + 50, next(network.parameters()).device)).detach()
    network.requires_grad_(True)


def generator_first(network: nn.Module, seed: int) -> None:
    learn(network, seed)
    discriminate(network, seed)


def discriminator_first(network: nn.Module, seed: int) -> None:
    discriminate(network, seed)
    learn(network, seed)


def thawed_later(network: nn.Module, seed: int) -> None:
    """As `BackboneFinetuning` does; the input alone wants a gradient until then."""
    network.requires_grad_(seed >= 3)
    images = rows(5, seed, next(network.parameters()).device)
    output = network(images)
    if seed >= 3:
        output.square().mean().backward()


def through_the_input(network: nn.Module, seed: int) -> None:
    """Frozen, with gradients that go through it, in every second step."""
    network.requires_grad_(seed % 2 == 0)
    network(rows(5, seed, next(network.parameters()).device).requires_grad_()).square().mean().backward()
    network.requires_grad_(True)


def partly(network: nn.Module, seed: int) -> None:
    """First layer frozen, thawed, and frozen again."""
    network[0].requires_grad_(3 <= seed < 6)
    learn(network, seed)


PLAIN, FROZEN, PARTLY = ("5x3 float32; no autocast" + end for end in ("", "; 6 weights frozen", "; 2 weights frozen"))
STEPS = {
    "generator-first": (generator_first, {PLAIN: 7}, {"no-gradients": 8}),
    "discriminator-first": (discriminator_first, {PLAIN: 7}, {"no-gradients": 8}),
    "thawed-later": (thawed_later, {PLAIN: 4}, {"no-gradients": 3}),
    "through-the-input": (through_the_input, {PLAIN: 3, FROZEN: 3}, {}),
    "partly": (partly, {PARTLY: 4, PLAIN: 2}, {}),
}


@ON_DEVICES
@pytest.mark.parametrize("case", STEPS)
def test_frozen_weights_make_a_layout(case: str, device: str) -> None:
    """Every state is native's; each set of frozen weights is recorded once, and found again."""
    step, counts, outside = STEPS[case]
    report = replayed(perceptron, step, 8, device)
    assert report.retirements == ()
    assert {one.layout: one.replayed for one in report.layouts} == counts
    assert all((one.recorded, one.native) == (1, {"observed": 1}) for one in report.layouts)
    assert report.native == outside


class Cut(nn.Module):
    """Gives its features without a gradient, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()

    def forward(self, x: torch.Tensor, cut: bool) -> torch.Tensor:
        return self.inner(x).detach() if cut else self.inner(x)


@ON_DEVICES
def test_outputs_without_gradients_pass(device: str) -> None:
    """Weights want gradients, and no output leads to them: nothing to record, and nothing to give up for."""

    def step(network: nn.Module, seed: int) -> None:
        output = network(rows(5, seed, device), seed % 2 == 0)
        if output.requires_grad:
            output.square().mean().backward()

    report = replayed(Cut, step, 8, device)
    assert report.retirements == ()
    assert [(one.recorded, one.replayed, one.native) for one in report.layouts] == [
        (0, 0, {"no-gradients": 4}),
        (1, 3, {"observed": 1}),
    ]


@ON_DEVICES
def test_frozen_phase_takes_no_place_from_others(device: str) -> None:
    """Six layouts come while everything is frozen, and the one recording that is allowed is made later."""
    network = perceptron().to(device).train().requires_grad_(False)
    with replay_of(network, layouts=1) as replay:
        for count in range(2, 8):
            network(rows(count, count, device))
        network.requires_grad_(True)
        for seed in range(4):
            learn(network, seed)
    assert (replay.report().recorded, replay.report().replayed) == (1, 3)
    assert replay.report().retirements == ()


# In Lightning


class Tuned(LightningModule):
    """A backbone and a head, for `BackboneFinetuning`."""

    path = "backbone"

    def __init__(self, backbone: Callable[[], nn.Module] = perceptron) -> None:
        super().__init__()
        self.backbone = backbone()
        self.head = nn.Linear(2, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.head(self.backbone(batch)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], 0.05)


class Normless(Tuned):
    """Without norms, which the callback trains also while it freezes the rest."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))


class Adversaries(LightningModule):
    """Two networks that train in turn, each while the other is frozen by `toggle_optimizer`."""

    path = "generator"
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
        self.discriminator = nn.Linear(3, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> None:
        for optimizer, fool in zip(self.optimizers(), (True, False), strict=True):
            self.toggle_optimizer(optimizer)
            made = self.generator(batch.flip(0))
            loss = self.discriminator(made if fool else made.detach()).mean()
            self.manual_backward(loss if fool else self.discriminator(batch).mean() - loss)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(one.parameters()) for one in (self.generator, self.discriminator)]


def fitted(make: type[LightningModule], device: str, replay: bool) -> tuple[dict[str, torch.Tensor], Report]:
    torch.manual_seed(1)
    module, callback = make(), ReplayCallback(make.path)
    callbacks: list[Callback] = [callback] if replay else []
    if issubclass(make, Tuned):
        callbacks.append(BackboneFinetuning(unfreeze_backbone_at_epoch=2))
    trainer: Trainer = trainer_on(device, max_epochs=4, callbacks=callbacks)
    trainer.fit(module, DataLoader(rows(24, 0), batch_size=4))
    return state_of(module), callback.report()


@pytest.mark.filterwarnings("ignore:The lr scheduler dict contains", "ignore:The provided params to be frozen")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make", "layouts", "outside"),
    [
        (Tuned, {"; 4 weights frozen": 11, "": 11}, {}),
        (Normless, {"": 11}, {"no-gradients": 12}),
        (Adversaries, {"": 23}, {"no-gradients": 24}),
    ],
)
def test_fit_that_freezes_and_thaws_matches(
    make: type[LightningModule],
    layouts: dict[str, int],
    outside: dict[str, int],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fine-tuning and the two-optimizer idiom: what is trained is replayed, before and after."""
    if device == "cpu":
        monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)
    native, _ = fitted(make, device, replay=False)
    state, report = fitted(make, device, replay=True)
    require_equal(native, state)
    assert report.retirements == ()
    name = "4x3 float32; no autocast"
    assert {one.layout: one.replayed for one in report.layouts} == {name + end: n for end, n in layouts.items()}
    assert report.native == outside
