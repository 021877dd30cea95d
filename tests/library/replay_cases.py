"""Small networks and a plain training loop for the library's tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from graphreplay import NetworkReplay, Report
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal

# Where a test's networks are: on the CPU they are replayed by `Rehearsal`.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Small(nn.Module):
    """Convolution, batch norm, dropout, and one weight that every forward uses three times."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(dropout)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.leave = nn.Linear(8, 4)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.norm(self.enter(x)).relu())
        for _ in range(3):
            x = self.shared(x).relu()
        return self.leave(x.mean((2, 3)))


class TwoHeads(Small):
    """Two outputs; the second has a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = super().forward(x)
        return x, self.second(x)


def images(count: int, seed: int, size: int = 12) -> torch.Tensor:
    """Images (count, 3, size, size) on the CPU, the same for the same seed."""
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def batch(count: int, seed: int, size: int = 12) -> torch.Tensor:
    """The same on the GPU."""
    return images(count, seed, size).cuda()


def squares(output: torch.Tensor) -> torch.Tensor:
    return (output.float() - 0.5).square().mean()


@dataclass
class Trace:
    """What a plain loop saw: `states` after each microbatch, by name."""

    states: list[dict[str, torch.Tensor]] = field(default_factory=list)
    report: Report = field(default_factory=lambda: Report((), ()))


def train(
    make: Callable[[], nn.Module],
    batches: Sequence[torch.Tensor],
    *,
    replay: bool,
    window: int = 1,
    set_to_none: bool = True,
    loss: Callable[[torch.Tensor], torch.Tensor] = squares,
    region: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    options: dict[str, object] | None = None,
    clear_after_forward: bool = False,
    before_step: Callable[[int, nn.Module], None] | None = None,
) -> Trace:
    """Train by SGD with momentum, stepping every `window` microbatches, and keep the state after each microbatch."""
    torch.manual_seed(7)
    network = make().cuda().train()
    trace = Trace()
    with NetworkReplay(network, **(options or {})) if replay else contextlib.nullcontext() as replaying:
        optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
        for step, images in enumerate(batches):
            if before_step is not None:
                before_step(step, network)
            with region():
                value = loss(network(images.clone())) / window
            if clear_after_forward and step % window == 0:
                optimizer.zero_grad(set_to_none=set_to_none)
            value.backward()
            trace.states.append(snapshot(network, value))
            if (step + 1) % window == 0:
                optimizer.step()
                if not clear_after_forward:
                    optimizer.zero_grad(set_to_none=set_to_none)
        if replaying is not None:
            trace.report = replaying.report()
    return trace


def snapshot(network: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weights, buffers, gradients, loss and the GPU's random state. A missing gradient has no entry."""
    state = {f"module.{name}": value.detach().clone() for name, value in network.state_dict().items()}
    for name, weight in network.named_parameters():
        if weight.grad is not None:
            state[f"gradient.{name}"] = weight.grad.detach().clone()
    return state | {"loss": loss.detach().clone(), "random": torch.cuda.get_rng_state()}


@contextlib.contextmanager
def watched(network: nn.Module, replay: bool) -> Iterator[NetworkReplay]:
    """Replay of the network where `replay` says so; else none, in the same words."""
    replaying = NetworkReplay(network)
    if replay:
        replaying.attach()
    yield replaying
    replaying.close()


def gradients(network: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients that are there, by the weights' names."""
    return {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}


def require_all_equal(native: Sequence[dict[str, torch.Tensor]], replayed: Sequence[dict[str, torch.Tensor]]) -> None:
    """Require equal bits at every step."""
    for step, (left, right) in enumerate(zip(native, replayed, strict=True)):
        require_equal(left, right, step)


def require_same(native: Trace, replayed: Trace) -> None:
    """Require equal bits after every microbatch."""
    require_all_equal(native.states, replayed.states)


def both(make: Callable[[], nn.Module], batches: list[torch.Tensor], **options: object) -> Trace:
    """Train natively, natively again, and replayed; require equal bits after every microbatch."""
    replay_options = options.pop("options", None)
    native = train(make, batches, replay=False, **options)
    require_same(native, train(make, batches, replay=False, **options))
    replayed = train(make, batches, replay=True, options=replay_options, **options)
    require_same(native, replayed)
    return replayed


def by_index(tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by names, as comparisons take them."""
    return {str(index): tensor for index, tensor in enumerate(tensors)}


def replay_of(network: nn.Module, **options: object) -> NetworkReplay:
    """A replay for where the network is."""
    return (NetworkReplay if next(network.parameters()).is_cuda else Rehearsal)(network, **options)


def rows(count: int, seed: int, device: str, width: int = 3) -> torch.Tensor:
    """A batch (count, width), the same for the same seed."""
    return torch.rand(count, width, generator=torch.Generator().manual_seed(seed)).to(device)


def steps_on(
    device: str, make: Callable[[], nn.Module], step: Callable[[nn.Module, int], object], count: int, replay: bool
) -> Trace:
    """`count` steps, each forward and backward by `step` and then one of SGD. Gradients after each, and at last the
    state."""
    torch.manual_seed(7)
    network = make().to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    trace = Trace()
    replaying = replay_of(network)
    if replay:
        replaying.attach()
    for index in range(count):
        optimizer.zero_grad()
        step(network, index)
        trace.states.append(gradients(network))
        optimizer.step()
    trace.states.append({name: value.clone() for name, value in network.state_dict().items()})
    trace.report = replaying.report()
    replaying.close()
    return trace


def both_on(
    device: str, make: Callable[[], nn.Module], step: Callable[[nn.Module, int], object], count: int = 6
) -> Report:
    """`steps_on` natively and replayed; require equal bits after each step."""
    native, replayed = (steps_on(device, make, step, count, replay) for replay in (False, True))
    require_same(native, replayed)
    return replayed.report
