"""Networks built and written in all the ways that people do: each is replayed to native's bits, or says why not.

By `Rehearsal` on the CPU, and on a GPU where there is one.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import numpy
import pytest
import torch
from device_cases import DEVICES, perceptron, replay_of, state_of
from torch import nn
from torch.nn.utils import weight_norm

from graphreplay import Label, Report
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal

STEPS = 5


def images(seed: int) -> torch.Tensor:
    return torch.rand(6, 3, generator=torch.Generator().manual_seed(seed))


def plain_step(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = network(x).square().mean()
    loss.backward()
    return loss.detach()


Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def trained(
    make: Callable[[], nn.Module], device: str, step: Step = plain_step, *, replay: bool
) -> tuple[list[dict[str, torch.Tensor]], Report, nn.Module]:
    """Each step's weights, buffers, gradients, input and loss, and what the replay says."""
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)  # The global generator is what is looked at.
    network = make().to(device).train()
    replaying = replay_of(network)
    if replay:
        replaying.attach()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    states = []
    for seed in range(STEPS):
        x = images(seed).to(device)
        optimizer.zero_grad()
        loss = step(network, x)
        hidden = {name: one.grad.clone() for name, one in extra_weights(network) if one.grad is not None}
        draws = {"python": torch.tensor(random.getrandbits(20)), "numpy": torch.tensor(numpy.random.rand())}
        states.append(state_of(network) | hidden | draws | {"input": x, "loss": loss})
        optimizer.step()
    report = replaying.report()
    replaying.close()
    return states, report, network


def extra_weights(network: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those that a network holds beside its modules."""
    return [(f"hidden.{index}", one) for index, one in enumerate(getattr(network, "hidden_weights", []))]


def both(make: Callable[[], nn.Module], device: str, step: Step = plain_step) -> Report:
    """Train natively and replayed; require equal bits after every step, and the network's own weights at the end."""
    native, _, _ = trained(make, device, step, replay=False)
    replayed, report, network = trained(make, device, step, replay=True)
    for index, (left, right) in enumerate(zip(native, replayed, strict=True)):
        require_equal(left, right, index)
    kinds = {type(held) for module in network.modules() for held in module._parameters.values() if held is not None}
    assert kinds <= {nn.Parameter}
    return report


# Modules with several names


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 3)
        self.again = self.enter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.enter(x).tanh())


class OneHeadThrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 3)] * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(head(x * (index + 1)) for index, head in enumerate(self.heads))  # type: ignore[return-value]


class NamedAndListed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.all = nn.Sequential(self.stem, nn.BatchNorm1d(4), self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.all(x)


class OneWeightInTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 3), nn.Linear(3, 3)
        self.leave.weight = self.enter.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.enter(x).tanh())


class OneWeightTwice(nn.Linear):
    """One weight by two names in one module."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.other = self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ self.other


def sandwich() -> nn.Module:
    linear = nn.Linear(3, 3)
    return nn.Sequential(linear, nn.BatchNorm1d(3), linear)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [TwoNames, OneHeadThrice, NamedAndListed, OneWeightInTwo, OneWeightTwice, sandwich])
def test_modules_and_weights_with_several_names_are_replayed(make: Callable[[], nn.Module], device: str) -> None:
    report = both(make, device)
    assert (report.recorded, report.replayed, report.retirements) == (1, STEPS - 1, ())


def test_weights_stay_in_their_places() -> None:
    """While it is replayed and after."""
    network = NamedAndListed().train()
    places = [
        (module._parameters, name, held) for module in network.modules() for name, held in module._parameters.items()
    ]
    with Rehearsal(network):
        for seed in range(3):
            plain_step(network, images(seed))
            assert all(store[name] is held for store, name, held in places)
    assert all(store[name] is held for store, name, held in places)


# Weights that are not in the module tree


class Hidden(nn.Linear):
    """A module in a list is no child; whoever wrote it so trains its weights by hand."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.extra = [nn.Linear(3, 3)]

    @property
    def hidden_weights(self) -> list[torch.Tensor]:
        return list(self.extra[0].parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.extra[0](super().forward(x))

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        self.extra[0]._apply(function)
        return super()._apply(function, recurse)


class InAList(nn.Linear):
    """The weight is in the tree, and the forward takes it from elsewhere."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.held = [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) @ self.held[0]

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        moved = super()._apply(function, recurse)
        self.held = [self.weight]
        return moved


class Conditioned(nn.Linear):
    """The forward reads what somebody has computed and left there."""

    context: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.encoder = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.context


def conditioned_step(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    network.context = network.encoder(x.mean(0))  # type: ignore[operator, assignment]
    return plain_step(network, x)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (Hidden, plain_step),
        (InAList, plain_step),
        (Conditioned, conditioned_step),
        (lambda: weight_norm(nn.Linear(3, 3)), plain_step),
    ],
    ids=["module-in-a-list", "weight-in-a-list", "tensor-of-before", "old-weight-norm-on-the-root"],
)
def test_gradients_that_go_elsewhere_retire(make: Callable[[], nn.Module], step: Step, device: str) -> None:
    """A replay hands gradients to the weights of the tree and to the inputs, and would drop all others."""
    report = both(make, device, step)
    assert report.replayed == 0
    assert {one.label for one in report.retirements} == {Label.CAPTURE}
    assert "neither a weight of the network's modules nor an input" in report.retirements[0].reason


# Forwards that write


class MaxNorm(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        return super().forward(x)


class Shrinks(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.mul_(0.9)
        return super().forward(x)


class ShrinksOpenly(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.9)
        return super().forward(x)


class WritesFrozen(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bias.data.add_(1)
        return super().forward(x)


class Replaces(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight = nn.Parameter(self.weight.detach() * 0.9)
        return super().forward(x)


class MovesBuffer(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.data = 0.9 * self.mean + 0.1 * x.mean(0)
        return super().forward(x - self.mean)


class AddsBuffer(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer(f"seen{len(self._buffers)}", x.mean(0))
        return super().forward(x)


class Counts(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.stats = {"forwards": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stats["forwards"] += 1
        return super().forward(x)


class Collects(nn.Linear):
    """As mixtures of experts do with the losses of their gates; its caller empties the list."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.kept: tuple[list[torch.Tensor]] = ([],)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.kept[0].append(result.square().mean() * 0.1)
        return result


def collecting_step(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    network.kept[0].clear()  # type: ignore[index, union-attr]
    result = network(x)
    assert len(network.kept[0]) == 1  # type: ignore[arg-type, index]
    loss = result.mean() + sum(network.kept[0])  # type: ignore[arg-type, index]
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (MaxNorm, plain_step),
        (Shrinks, plain_step),
        (ShrinksOpenly, plain_step),
        (WritesFrozen, plain_step),
        (Replaces, plain_step),
        (MovesBuffer, plain_step),
        (AddsBuffer, plain_step),
        (Counts, plain_step),
        (Collects, collecting_step),
    ],
)
def test_forwards_that_write_what_a_replay_would_not_retire(kind: type[nn.Linear], step: Step, device: str) -> None:
    report = both(lambda: kind(3, 3), device, step)
    assert report.replayed == 0
    assert {one.label for one in report.retirements} == {Label.STATE}


def test_recording_leaves_containers_as_they_were() -> None:
    network = Counts(3, 3).train()
    with Rehearsal(network):
        for seed in range(4):
            plain_step(network, images(seed))
    assert network.stats == {"forwards": 4}


class WritesInput(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.data.sub_(0.5)
        return super().forward(x)


class MovesInput(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.data = x * 2
        return super().forward(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [WritesInput, MovesInput])
def test_writing_into_the_input_unseen_by_autograd_retires(kind: type[nn.Linear], device: str) -> None:
    report = both(lambda: kind(3, 3), device)
    assert report.replayed == 0
    assert {one.label for one in report.retirements} == {Label.INPUT}


# Random numbers of the host


class DrawsByPython(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * random.uniform(0.5, 1.5)  # noqa: S311


class DrawsByNumpy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(numpy.random.rand())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [DrawsByPython, DrawsByNumpy])
def test_random_numbers_of_the_host_retire(kind: type[nn.Linear], device: str) -> None:
    """And the recording that was tried has drawn none."""
    report = both(lambda: kind(3, 3), device)
    assert report.replayed == 0
    assert {one.label for one in report.retirements} == {Label.RANDOM}


# Native forwards that await their backward while another one is recorded


@pytest.mark.parametrize("device", DEVICES)
def test_pending_native_forward_outlives_a_recording(device: str) -> None:
    """Warm-up writes buffers that the pending backward has saved, and puts them back; autograd counts writes."""

    def gradients(replay: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        network = perceptron().to(device).train()
        replaying = replay_of(network)
        if replay:
            replaying.attach()
        plain_step(network, images(0).to(device))
        # Of a new layout, so native; then the recording of the first layout.
        pending = network(images(1)[:4].to(device)).square().mean()
        plain_step(network, images(2).to(device))
        pending.backward()
        assert replaying.report().recorded == (1 if replay else 0)
        replaying.close()
        return state_of(network)

    require_equal(gradients(replay=False), gradients(replay=True))


def test_copies_have_weights_of_their_own() -> None:
    """A copy that was made of a network between a recording and its use trains alone."""
    network = TwoNames().train()
    with Rehearsal(network):
        for seed in range(3):
            plain_step(network, images(seed))
        other = copy.deepcopy(network)
        before = {name: one.grad.clone() for name, one in network.named_parameters()}
        plain_step(other, images(9))
    require_equal(before, {name: one.grad for name, one in network.named_parameters()})
