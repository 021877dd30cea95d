"""One replay serves many epochs and fits: only weights that move all the time end it."""

from __future__ import annotations

import pytest
import torch
from device_cases import ON_DEVICES, perceptron, replay_of, rows, trained
from torch import nn

from graphreplay import Label
from graphreplay.testing import require_equal


def learn(network: nn.Module, seed: int) -> None:
    network.zero_grad()
    network(rows(5, seed, next(network.parameters()).device)).square().mean().backward()


def move(network: nn.Module) -> None:
    """New addresses, as after a move to another device and back."""
    network.double().float()


@pytest.fixture
def network(device: str) -> nn.Module:
    torch.manual_seed(1)
    return perceptron().to(device).train()


@ON_DEVICES
def test_replay_that_is_closed_after_each_epoch_goes_on(network: nn.Module) -> None:
    replay = replay_of(network, strict=True)
    for _ in range(7):
        with replay:
            for seed in range(3):
                learn(network, seed)
    assert replay.report().retirements == ()
    assert (replay.report().recorded, replay.report().replayed) == (7, 20)


@ON_DEVICES
def test_moves_between_closed_epochs_do_not_count(network: nn.Module) -> None:
    replay = replay_of(network, strict=True)
    for _ in range(7):
        with replay:
            for seed in range(3):
                learn(network, seed)
            move(network)
            learn(network, 3)
    assert (replay.report().recorded, replay.report().replayed) == (14, 27)


@ON_DEVICES
def test_replay_that_stays_attached_over_many_fits_goes_on(network: nn.Module) -> None:
    """Between the fits the weights move; each recording has served long enough."""
    with replay_of(network, strict=True) as replay:
        for _ in range(7):
            for seed in range(33):
                learn(network, seed)
            move(network)
        assert (replay.report().recorded, replay.report().replayed) == (7, 7 * 33 - 1)


@ON_DEVICES
def test_weights_that_move_all_the_time_end_it(device: str) -> None:
    """After four recordings in a row that did not pay; long service in between begins the count anew."""
    at = [4, 8, 12, 60, 64, 68, 72]

    def step(network: nn.Module, seed: int) -> None:
        if seed in at:
            # In place of the optimizer's own tensors: these are what it steps on, in other memory.
            for weight in network.parameters():
                weight.data = weight.data.clone()
        network(rows(5, seed, device)).square().mean().backward()

    native, _ = trained(perceptron, step, 80, device, replay=False)
    states, report = trained(perceptron, step, 80, device, replay=True)
    for index, (left, right) in enumerate(zip(native, states, strict=True)):
        require_equal(left, right, index)
    assert [one.label for one in report.retirements] == [Label.MOVED]
    assert "4 recordings, each before it had served 32 forwards" in report.retirements[0].reason
    # The move at 60 was paid for, and counts as the first again.
    assert (report.recorded, report.replayed) == (7, 71)


@ON_DEVICES
def test_network_that_leaves_its_device_and_comes_back_goes_on(network: nn.Module, device: str) -> None:
    """What it does elsewhere runs native, and gives the recordings' memory back."""
    state = {name: value.clone() for name, value in network.state_dict().items()}
    with replay_of(network) as replay:
        for _ in range(7):
            for seed in range(3):
                learn(network, seed)
            network.to("meta")
            network(torch.ones(5, 3, device="meta"))
            assert replay._recorder is None
            network.to_empty(device=device).load_state_dict(state)
    report = replay.report()
    assert [one.label for one in report.retirements] == [Label.DEVICE]
    assert (report.recorded, report.replayed, report.native) == (7, 20, {"device": 7})
