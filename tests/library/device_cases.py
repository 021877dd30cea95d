"""A plain loop and a Trainer for tests that rehearse replay on the CPU and, where there is one, run it on a GPU too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from graphreplay import NetworkReplay, Report
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)
Step = Callable[[nn.Module, int], object]


def replay_of(network: nn.Module, **options: Any) -> NetworkReplay:
    """A replay for the device that the network is on."""
    kind = NetworkReplay if any(weight.is_cuda for weight in network.parameters()) else Rehearsal
    return kind(network, **options)


def rows(count: int, seed: int, device: str = "cpu") -> torch.Tensor:
    """Random numbers (count, 3), the same for the same seed."""
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed)).to(device)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def state_of(network: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of weights, buffers and those gradients that are there."""
    # Comparisons of bits take dense tensors alone.
    found = {name: value.detach().to_dense().clone() for name, value in network.state_dict().items()}
    weights = network.named_parameters()
    return found | {f"gradient.{name}": one.grad.clone() for name, one in weights if one.grad is not None}


def trained(
    make: Callable[[], nn.Module], step: Step, count: int, device: str, replay: bool, **options: Any
) -> tuple[list[dict[str, torch.Tensor]], Report]:
    """Train by SGD with momentum. `step` does forward and backward; the states are those before each optimizer step."""
    torch.manual_seed(1)
    network = make().to(device).train()
    replaying = replay_of(network, **options)
    if replay:
        replaying.attach()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    states = []
    for index in range(count):
        optimizer.zero_grad()
        step(network, index)
        states.append(state_of(network))
        optimizer.step()
    replaying.close()
    return [*states, state_of(network)], replaying.report()


def replayed(make: Callable[[], nn.Module], step: Step, count: int, device: str, **options: Any) -> Report:
    """Train natively and replayed; require equal bits after every step. The report of the replay."""
    native, _ = trained(make, step, count, device, replay=False)
    states, report = trained(make, step, count, device, replay=True, **options)
    for index, (left, right) in enumerate(zip(native, states, strict=True)):
        require_equal(left, right, index)
    return report


def trainer_on(device: str, **options: Any) -> Trainer:
    """A quiet Trainer of one device."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "max_epochs": 1}
    return Trainer(**{**quiet, **options}, accelerator="gpu" if device == "cuda" else "cpu", devices=1)
