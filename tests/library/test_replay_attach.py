"""What stands between a network's caller and its replay: another replay, or torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_cases import ON_DEVICES, perceptron, replay_of, rows, state_of, trainer_on
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

import graphreplay.callback
from graphreplay import OptionError, ReplayCallback
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal


def learn(network: nn.Module, seed: int) -> None:
    network.zero_grad()
    network(rows(5, seed, next(network.parameters()).device)).square().mean().backward()


# Two replays


def test_second_replay_of_a_network_is_refused() -> None:
    """The first one goes on; when it is closed, the other may come. A child may have a replay of its own."""
    network = perceptron().train()
    first, second = replay_of(network), replay_of(network)
    with first:
        assert first.attach() is first
        with pytest.raises(OptionError, match="network=Sequential is replayed by another NetworkReplay already; close"):
            second.attach()
        replay_of(network[3]).attach().close()
        for seed in range(3):
            learn(network, seed)
    assert first.report().replayed == 2
    with second:
        for seed in range(3):
            learn(network, seed)
    assert (first.report().replayed, second.report().replayed) == (2, 2)
    assert "forward" not in vars(network)


class Painter(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = perceptron()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.network(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def test_second_callback_for_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any step, and with nothing left on the network."""
    monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)
    module = Painter()
    trainer = trainer_on("cpu", callbacks=[ReplayCallback("network"), ReplayCallback("network")])
    with pytest.raises(OptionError, match="is replayed by another NetworkReplay already"):
        trainer.fit(module, DataLoader(rows(8, 0), batch_size=4))
    assert trainer.global_step == 0
    assert "forward" not in vars(module.network)


# The compiler


def test_network_compiled_in_place_is_refused() -> None:
    network = perceptron()
    # Marked as its compile() marks it; importing the compiler for it would take seconds.
    network._compiled_call_impl = lambda *_: None
    with pytest.raises(OptionError, match="network is a Sequential compiled in place by its compile"):
        replay_of(network)
    network._compiled_call_impl = None
    replay_of(network)


def test_replay_does_not_import_the_compiler() -> None:
    """That takes seconds, and mostly nobody compiles."""
    work = (
        "import sys, torch; from graphreplay import NetworkReplay; from torch import nn; network = nn.Linear(2, 2)\n"
        "with NetworkReplay(network): network(torch.ones(1, 2)).sum().backward()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", work], check=False).returncode == 0


class Around(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x * 2).square().mean()


def after_a_break(network: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return network(x).square().mean()

    return run


def calls_of(graph: torch.fx.GraphModule) -> list[str]:
    return [getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes if "call" in node.op]


AROUND = {
    "function": lambda network: lambda x: network(x * 2).square().mean(),
    "module": Around,
    "after-a-break": after_a_break,
}


@ON_DEVICES
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_function_around_the_network_breaks_there(around: Callable[[nn.Module], Any], device: str) -> None:
    """What is around the network is compiled, the network is replayed, and nothing of the replay is traced."""
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(calls_of(graph))
        return graph.forward

    states = []
    for replay in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(1)
        network = perceptron().to(device).train()
        replaying = replay_of(network, strict=True)
        if replay:
            replaying.attach()
        run = around(network)
        compiled = torch.compile(run, backend=backend) if replay else run
        for seed in range(4):
            network.zero_grad()
            compiled(rows(5, seed, device)).backward()
        states.append(state_of(network))
        replaying.detach()
    require_equal(*states)
    assert graphs == [["mul"], ["square", "mean"]]
    assert (replaying.report().recorded, replaying.report().replayed) == (1, 3)
