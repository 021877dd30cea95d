"""What changes while recordings exist: weights, windows, batches, the scaler. Every step is bit for bit native."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from replay_cases import Small, batch, both, by_index, gradients, require_all_equal, squares, watched
from torch import nn

from graphreplay import NetworkReplay, Report
from graphreplay.testing import compare, require_equal

pytestmark = pytest.mark.gpu

# Weights


def assign(network: nn.Module, _kept: list[torch.Tensor]) -> None:
    network.load_state_dict({name: value.clone() for name, value in network.state_dict().items()}, assign=True)


def there_and_back(network: nn.Module, kept: list[torch.Tensor]) -> None:
    kept.extend(one.data for one in (*network.parameters(), *network.buffers()))
    network.cpu()
    network.cuda()


def take_average(network: nn.Module, kept: list[torch.Tensor]) -> None:
    """As a callback does that swaps weights by their memory."""
    for weight in network.parameters():
        kept.append(weight.data)
        weight.data = weight.data * 0.5


def freeze(network: nn.Module, _kept: list[torch.Tensor]) -> None:
    network.enter.requires_grad_(False)


def replace_buffer(network: nn.Module, kept: list[torch.Tensor]) -> None:
    kept.append(network.norm.running_mean)
    network.norm.running_mean = network.norm.running_mean + 1


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("change", [assign, there_and_back, take_average, freeze, replace_buffer])
def test_changed_weights_are_recorded_anew(
    change: Callable[[nn.Module, list[torch.Tensor]], None], window: int
) -> None:
    """Weights at new addresses or frozen, in the middle of a window too: nothing reads the old ones (vllm#48941)."""
    kept: list[torch.Tensor] = []

    def move(step: int, network: nn.Module) -> None:
        if step == 5:
            change(network, kept)

    traced = both(Small, [batch(2, seed) for seed in range(9)], window=window, before_step=move)
    assert traced.report.retirements == ()
    assert traced.report.recorded == 2
    # The gradients of a weight that was replaced in the middle of a window go on living in its old object.
    late = 1 if change is assign and window == 2 else 0
    assert traced.report.native_by_cause.get("gradients-held", 0) == late
    # Other weights that want a gradient make another layout, which is watched first.
    assert traced.report.replayed == 9 - 1 - late - (change is freeze)


def test_values_written_in_place_keep_the_recording() -> None:
    """A checkpoint loaded into the same memory, and weights clipped by hand, need no new recording."""

    def move(step: int, network: nn.Module) -> None:
        if step == 4:
            network.load_state_dict({name: value * 0.5 for name, value in network.state_dict().items()})
        with torch.no_grad():
            network.leave.weight.clamp_(-0.1, 0.1)

    traced = both(Small, [batch(2, seed) for seed in range(8)], window=2, before_step=move)
    assert (traced.report.recorded, traced.report.replayed) == (1, 7)


def test_norm_set_to_evaluation_makes_a_layout() -> None:
    """Statistics frozen in the middle of a fit, and thawed again, are two recordings, each with its own arithmetic."""

    def move(step: int, network: nn.Module) -> None:
        network.norm.train(step % 6 < 3)

    traced = both(Small, [batch(2, seed) for seed in range(12)], window=2, before_step=move)
    assert [layout.recorded for layout in traced.report.layouts] == [1, 1]
    assert traced.report.replayed == 10


# Gradients and the scaler


def train_scaled(replay: bool) -> tuple[list[dict[str, torch.Tensor]], Report]:
    """Windows of two under a GradScaler; the second microbatch of the fourth window overflows."""
    torch.manual_seed(3)
    network = Small().cuda()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=3)
    states = []
    with watched(network, replay) as replaying:
        for step in range(14):
            with torch.autocast("cuda", torch.float16):
                loss = squares(network(batch(2, step))) * (math.inf if step == 7 else 1.0)
            scaler.scale(loss).backward()
            if step % 2 == 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                state = {name: value.detach().clone() for name, value in network.named_parameters()}
                numbers = scaler.state_dict()
                states.append(state | {name: torch.tensor(numbers[name]) for name in ("scale", "_growth_tracker")})
    return states, replaying.report()


def test_infinity_in_the_second_microbatch_skips_the_step() -> None:
    """The step is skipped, the scale halved, the growth tracker reset as natively (pytorch#55562, #97415)."""
    native, _ = train_scaled(False)
    require_all_equal(native, train_scaled(False)[0])
    replayed, report = train_scaled(True)
    require_all_equal(native, replayed)
    assert [state["scale"].item() for state in replayed] == [1024, 1024, 2048, 1024, 1024, 1024, 2048]
    assert [state["_growth_tracker"].item() for state in replayed] == [1, 2, 0, 0, 1, 2, 0]
    weights = [{name: value for name, value in state.items() if "." in name} for state in replayed]
    assert compare(weights[2], weights[3]) is None
    assert compare(weights[3], weights[4]) is not None
    assert report.retirements == ()
    assert (report.recorded, report.replayed) == (1, 13)


def test_recording_in_the_middle_of_a_window_keeps_gradients() -> None:
    """The `.grad` of the microbatch before stays the same object with the same bits (TransformerEngine#869)."""
    native, network = Small(dropout=0.0).cuda(), Small(dropout=0.0).cuda()
    network.load_state_dict(native.state_dict())
    with NetworkReplay(network) as replay:
        squares(network(batch(2, 0))).backward()
        held = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
        values = {name: gradient.clone() for name, gradient in held.items()}
        pending = squares(network(batch(2, 1)))
        assert replay.report().recorded == 1
        assert all(dict(network.named_parameters())[name].grad is gradient for name, gradient in held.items())
        require_equal(values, held)
        pending.backward()
    for seed in range(2):
        squares(native(batch(2, seed))).backward()
    require_equal(gradients(native), held)


def test_input_gradients_match() -> None:
    """An input that wants a gradient gets native's, and keeps it over later replays."""

    def fit(replay: bool) -> tuple[list[torch.Tensor], Report]:
        torch.manual_seed(3)
        network = Small().cuda()
        inputs = [batch(2, seed).requires_grad_() for seed in range(5)]
        with watched(network, replay) as replaying:
            for x in inputs:
                network.zero_grad()
                squares(network(x)).backward()
        return [x.grad for x in inputs], replaying.report()

    replayed, report = fit(True)
    require_equal(by_index(fit(False)[0]), by_index(replayed))
    assert (report.recorded, report.replayed) == (1, 4)


@pytest.mark.parametrize("size", [0, 1], ids=["empty", "single"])
def test_short_batches_match(size: int) -> None:
    """A batch of one, which copying would broadcast, and one without images."""

    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output.float() - 0.5).square().sum()

    batches = [batch(size if seed % 3 == 2 else 2, seed) for seed in range(9)]
    traced = both(Small, batches, window=2, loss=loss)
    usual, short = traced.report.layouts
    assert (usual.recorded, usual.replayed) == (1, 5)
    assert short.replayed + sum(short.native.values()) == 3


def test_views_into_a_larger_batch_match() -> None:
    """Kernels are chosen by the alignment of memory, so a view that begins elsewhere is a layout of its own."""
    whole = batch(9, 0, 13)
    batches = [whole[first : first + 2] for first in (0, 1, 2, 3) * 3]
    states: dict[bool, list[dict[str, torch.Tensor]]] = {False: [], True: []}
    for replay, seen in states.items():
        torch.manual_seed(3)
        network = Small().cuda()
        with watched(network, replay) as replaying:
            for x in batches:
                network.zero_grad()
                loss = squares(network(x))
                loss.backward()
                seen.append(gradients(network) | {"loss": loss.detach()})
    require_all_equal(states[False], states[True])
    report = replaying.report()
    assert report.retirements == ()
    assert report.replayed == len(batches) - len(report.layouts)


def test_losses_that_stay_alive_do_not_stop_later_recordings() -> None:
    """Their autograd graphs hold nodes of the caller's stream, with which a capture fails (pytorch#180090)."""
    kept: list[torch.Tensor] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        kept.append(squares(output))
        return kept[-1]

    traced = both(Small, [batch(2 + seed // 3, seed) for seed in range(9)], loss=loss)
    assert traced.report.retirements == ()
    assert (traced.report.recorded, traced.report.replayed) == (3, 6)


def train_in_windows(lengths: tuple[int, ...], replay: bool) -> tuple[list[dict[str, torch.Tensor]], Report]:
    """Step after each window but the last, in which the loop ends. Gradients after every microbatch."""
    torch.manual_seed(3)
    network = Small().cuda()
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    states: list[dict[str, torch.Tensor]] = []
    with watched(network, replay) as replaying:
        for length in lengths:
            if states:
                optimizer.step()
                optimizer.zero_grad(set_to_none=length % 2 == 0)
            for _ in range(length):
                (squares(network(batch(2, len(states)))) / length).backward()
                states.append(gradients(network))
    return states, replaying.report()


def test_windows_of_changing_length_keep_the_recording() -> None:
    """A plain loop may step whenever it likes, clear gradients either way, and end inside a window."""
    lengths = (2, 3, 1, 4, 2, 3)
    native, _ = train_in_windows(lengths, False)
    replayed, report = train_in_windows(lengths, True)
    require_all_equal(native, replayed)
    assert report.retirements == ()
    assert (report.recorded, report.replayed) == (1, sum(lengths) - 1)
