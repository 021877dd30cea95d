"""Hooks of modules and weights beside replay: each fires as often as natively, whenever it was registered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from replay_cases import Small, batch, by_index, gradients, squares, watched
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from graphreplay import Label, NetworkReplay, Report
from graphreplay.testing import require_equal

pytestmark = pytest.mark.gpu

Note = Callable[..., None]


def forward_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.norm.register_forward_hook(note)


def forward_pre_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.shared.register_forward_pre_hook(note)


def backward_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.leave.register_full_backward_hook(note)


def backward_pre_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.leave.register_full_backward_pre_hook(note)


def global_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return register_module_forward_hook(lambda module, *_: note() if module is network.leave else None)


def weight_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.leave.weight.register_hook(lambda _: note())


def accumulated_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.leave.weight.register_post_accumulate_grad_hook(note)


def root_hook(network: nn.Module, note: Note) -> RemovableHandle:
    return network.register_forward_hook(note)


INNER = [forward_hook, forward_pre_hook, backward_hook, backward_pre_hook, global_hook]


def train_hooked(
    register: Callable[[nn.Module, Note], RemovableHandle], replay: bool
) -> tuple[dict[str, torch.Tensor], int, Report]:
    """Nine microbatches, of which the three in the middle have the hook. Gradients, calls, report."""
    torch.manual_seed(3)
    network = Small().cuda()
    fired: list[int] = []
    with watched(network, replay) as replaying:
        for seed in range(9):
            if seed == 3:
                handle = register(network, lambda *_: fired.append(1))
            if seed == 6:
                handle.remove()
            squares(network(batch(2, seed))).backward()
    return gradients(network), len(fired), replaying.report()


@pytest.mark.parametrize("register", [*INNER, weight_hook, accumulated_hook, root_hook])
def test_hooks_registered_after_recording_fire(register: Callable[[nn.Module, Note], RemovableHandle]) -> None:
    """Natively for as long as they are there, where a replay would not call them; else around the replay."""
    native, expected, _ = train_hooked(register, False)
    replayed, fired, report = train_hooked(register, True)
    require_equal(native, replayed)
    assert fired == expected > 0
    inside = register in INNER
    assert report.native == ({"hooks": 3} if inside else {})
    assert report.replayed == (5 if inside else 8)
    assert [one.label for one in report.retirements] == [Label.HOOKS] * inside


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_unused_weights_stay_silent(name: str) -> None:
    """A weight that takes no part has no gradient natively, and its hooks no call, neither with None nor with zeros."""
    network = Small().cuda()
    fired: list[object] = []
    with NetworkReplay(network) as replay:
        for seed in range(6):
            if seed == 3:
                getattr(network.spare, name)(lambda *_: fired.append(1))
            squares(network(batch(2, seed))).backward()
    assert fired == []
    assert network.spare.grad is None
    assert replay.report().recorded == 1
    assert replay.report().replayed >= 2


def train_inside_the_backward(
    replay: bool, keep: bool, spare: bool
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor], Report]:
    """Each weight steps in a hook as soon as it has its gradient. End state, kept gradients, their copies, report."""
    torch.manual_seed(3)
    network = Small().cuda()
    if not spare:
        del network.spare
    kept: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []

    def step(weight: torch.Tensor) -> None:
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.05)
        if keep and weight is network.leave.weight:
            kept.append(weight.grad)
            copies.append(weight.grad.clone())
        weight.grad = None

    for weight in network.parameters():
        weight.register_post_accumulate_grad_hook(step)
    with watched(network, replay) as replaying:
        for seed in range(5):
            squares(network(batch(2, seed))).backward()
    return dict(network.state_dict()), kept, copies, replaying.report()


@pytest.mark.parametrize(
    ("keep", "spare", "causes"),
    [
        (False, False, {"observed": 1}),
        (True, False, {"observed": 1, "gradients-held": 3}),
        (False, True, {"observed": 1, "unused-hooked": 4}),
    ],
    ids=["dropped", "kept", "unused"],
)
def test_optimizer_inside_the_backward_matches(keep: bool, spare: bool, causes: dict[str, int]) -> None:
    """What such a hook keeps has the same bits after later replays; that of an unused weight is not called."""
    native, expected, _, _ = train_inside_the_backward(False, keep, spare)
    replayed, kept, copies, report = train_inside_the_backward(True, keep, spare)
    require_equal(native, replayed)
    require_equal(by_index(expected), by_index(kept))
    require_equal(by_index(copies), by_index(kept))
    (layout,) = report.layouts
    assert layout.native == causes
    assert layout.replayed == 5 - sum(causes.values())
