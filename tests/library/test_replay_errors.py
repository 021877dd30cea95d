"""Networks of unusual kinds: refused or run natively, with the way out in the message; no error is torch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from device_cases import ON_DEVICES, perceptron, replay_of, replayed, rows
from torch import fx, nn

from graphreplay import Label, OptionError
from graphreplay.testing import compare


class Graph(nn.Module):
    """Multiplies with a sparse matrix."""

    def __init__(self, kind: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.kind = kind
        self.inner = nn.Linear(3, 2)
        self.register_buffer("adjacency", kind(torch.eye(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner((self.adjacency @ x.t()).t())


def learn(network: nn.Module, seed: int) -> None:
    network(rows(5, seed, next(network.parameters()).device)).square().mean().backward()


@ON_DEVICES
@pytest.mark.parametrize("name", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_buffer_runs_native(name: str, device: str) -> None:
    report = replayed(lambda: Graph(lambda matrix: getattr(matrix, name)()), learn, 4, device)
    assert [one.label for one in report.retirements] == [Label.CAPTURE]
    assert "adjacency is sparse" in report.retirements[0].reason
    assert report.layouts[0].native == {"observed": 1, "capture-failed": 3}


@ON_DEVICES
def test_buffer_that_becomes_sparse_runs_native(device: str) -> None:
    def step(network: nn.Module, seed: int) -> None:
        if seed == 3:
            network.adjacency = network.adjacency.to_sparse()
        learn(network, seed)

    report = replayed(lambda: Graph(torch.clone), step, 6, device)
    assert (report.recorded, report.replayed) == (1, 2)
    assert report.layouts[0].native == {"observed": 1, "capture-failed": 3}


@pytest.mark.parametrize("make", [lambda: nn.LazyLinear(3), nn.LazyBatchNorm1d], ids=["weight", "weight-and-buffer"])
def test_lazy_network_is_refused_until_it_has_a_shape(make: Callable[[], nn.Module]) -> None:
    network = nn.Sequential(make())
    with pytest.raises(OptionError, match=r"no shape for its lazy 0\.weight yet; call the network once"):
        replay_of(network)
    network(rows(5, 0))
    with replay_of(network, strict=True) as replay:
        for seed in range(3):
            learn(network, seed)
    assert replay.report().replayed == 2


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_child_that_comes_later_runs_native_until_it_has_a_shape() -> None:
    network = nn.Sequential(nn.Linear(3, 3)).train()
    with replay_of(network) as replay:
        learn(network, 0)
        network.append(nn.LazyLinear(2))
        for seed in range(1, 4):
            learn(network, seed)
    assert [one.label for one in replay.report().retirements] == [Label.HOOKS]
    assert (replay.report().recorded, replay.report().replayed) == (1, 1)


class Meaning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.factor: object = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * float(np.mean(self.factor))


class Unequal:
    """Cannot be compared, and is a number all the same."""

    def __eq__(self, _: object) -> bool:
        raise LookupError("no way")

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.full(3, 2.0)


@ON_DEVICES
@pytest.mark.parametrize("value", [np.full(3, 2.0), Unequal()], ids=["array", "other"])
def test_attribute_that_becomes_something_else_is_recorded_anew(value: object, device: str) -> None:
    def step(network: nn.Module, seed: int) -> None:
        if seed == 3:
            network.factor = value
        learn(network, seed)

    report = replayed(Meaning, step, 6, device)
    assert report.retirements == ()
    assert (report.recorded, report.replayed) == (2, 5)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])  # noqa: S301  # Its own bytes.
def test_copies_of_a_traced_network_are_native(twin: Callable[[nn.Module], nn.Module]) -> None:
    network = fx.symbolic_trace(perceptron()).train()
    with replay_of(network, strict=True) as replay:
        for seed in range(3):
            learn(network, seed)
        other = twin(network)
        assert compare(network.state_dict(), other.state_dict()) is None
        before = replay.report()
        other.train()
        network.train()
        output = other(rows(5, 7))
        assert replay.report() == before
        assert torch.equal(output, network(rows(5, 7)))
        with torch.no_grad():
            for weight in other.parameters():
                weight.zero_()
        assert not other(rows(5, 7)).any()
    assert "forward" not in vars(network)
