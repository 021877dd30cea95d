"""Each known way in which recording and replaying goes wrong, on the GPU, against native training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from replay_cases import Small, TwoHeads, batch, both, by_index, require_same, squares, train
from torch import nn
from torch.utils.data import DataLoader

from graphreplay import Label, NetworkReplay, ReplayError, Report, RetiredError
from graphreplay.testing import compare, require_equal

pytestmark = pytest.mark.gpu


# Live gradients


@pytest.mark.parametrize("clear_after_forward", [False, True], ids=["cleared-at-step", "cleared-after-forward"])
@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zero"])
@pytest.mark.parametrize("window", [2, 3, 4])
def test_accumulated_gradients_match_native(window: int, set_to_none: bool, clear_after_forward: bool) -> None:
    """A live gradient keeps its value over the replays of its window, by the same recording and by another."""
    batches = [batch(2 + seed // 2 % 2, seed) for seed in range(12)]
    traced = both(Small, batches, window=window, set_to_none=set_to_none, clear_after_forward=clear_after_forward)
    assert traced.report.recorded == 2
    assert traced.report.replayed == 10


def test_live_gradient_keeps_its_identity() -> None:
    """A forward in the middle of a window neither replaces nor changes the `.grad` that others may hold."""
    network = Small().cuda()
    with NetworkReplay(network) as replay:
        for seed in range(2):
            network.zero_grad()
            squares(network(batch(2, seed))).backward()
        held = network.enter.weight.grad
        value = held.clone()
        pending = network(batch(2, 5))
        assert network.enter.weight.grad is held
        require_equal({"gradient": value}, {"gradient": held})
        squares(pending).backward()
    assert replay.report().replayed == 2


def test_gradient_kept_by_a_hook_stays() -> None:
    """A tensor hook that keeps its gradient holds the same bits after later replays."""
    network = Small(dropout=0.0).cuda()
    kept: list[torch.Tensor] = []
    network.shared.weight.register_hook(lambda gradient: kept.append(gradient) and None)
    copies = []
    with NetworkReplay(network) as replay:
        for seed in range(4):
            network.zero_grad()
            squares(network(batch(2, seed))).backward()
            copies.append(kept[-1].clone())
    assert replay.report().replayed == 3
    require_equal(by_index(copies), by_index(kept))


def test_gradients_from_autograd_grad_stay() -> None:
    """Gradients that are kept without being a `.grad` are noticed, and forwards run native until they are let go."""
    network = Small(dropout=0.0).cuda()
    weights = [weight for weight in network.parameters() if weight is not network.spare]
    kept, copies = [], []
    with NetworkReplay(network) as replay:
        for seed in range(5):
            kept.append(torch.autograd.grad(squares(network(batch(2, seed))), weights))
            copies.append([gradient.clone() for gradient in kept[-1]])
        for step, gradients in enumerate(copies):
            require_equal(by_index(gradients), by_index(kept[step]), step)
        kept.clear()
        squares(network(batch(2, 9))).backward()
    assert replay.report().layouts[0].native == {"observed": 1, "gradients-held": 3}
    assert replay.report().replayed == 2


def test_view_of_a_live_gradient_stays_one() -> None:
    """A flat view that somebody keeps of `.grad` still sees what accumulates there."""
    network = Small(dropout=0.0).cuda()
    with NetworkReplay(network) as replay:
        for seed in range(2):
            network.zero_grad()
            squares(network(batch(2, seed))).backward()
        view = network.enter.weight.grad.view(-1)
        squares(network(batch(2, 2))).backward()
        assert view.data_ptr() == network.enter.weight.grad.data_ptr()
    assert replay.report().layouts[0].native == {"observed": 1, "gradients-held": 1}


# Autocast


@pytest.mark.parametrize("cache", [True, False], ids=["cache-on", "cache-off"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_weight_used_three_times_matches_under_autocast(dtype: torch.dtype, cache: bool) -> None:
    """The caller's own autocast region is recorded: with its weight cache, gradients sum in half precision."""
    region = lambda: torch.autocast("cuda", dtype, cache_enabled=cache)  # noqa: E731  # A name would say no more.
    traced = both(Small, [batch(2, seed) for seed in range(6)], window=2, region=region)
    assert traced.report.recorded == 1
    assert traced.report.replayed == 5


def test_autocast_settings_make_layouts() -> None:
    """One shape under four settings is four recordings."""
    network = Small().cuda()
    settings = [(False, True), (True, True), (True, False)]
    with NetworkReplay(network) as replay:
        for _ in range(3):
            for enabled, cache in settings:
                with torch.autocast("cuda", torch.float16, enabled=enabled, cache_enabled=cache):
                    loss = squares(network(batch(2, 0)))
                loss.backward()
    report = replay.report()
    assert [layout.recorded for layout in report.layouts] == [1, 1, 1]
    assert [layout.replayed for layout in report.layouts] == [2, 2, 2]


# Buffers, random numbers, failed captures


def test_recording_leaves_buffers_and_random_state() -> None:
    """Right after the step that records, statistics, their counter and the random state are native's."""
    traced = both(Small, [batch(4, seed) for seed in range(2)], options={"warmup": 5})
    assert traced.report.recorded == 1


class Asking(Small):
    """Asks the GPU for a number when the batch is 3, which cannot be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if len(x) == 3 and torch.cuda.is_current_stream_capturing():
            x = x * x.detach().abs().max().item()
        return x


def test_failed_capture_goes_on_native_and_others_record() -> None:
    """The layout retires with the error as its reason; bits, random stream and later layouts are untouched."""
    batches = [batch(count, seed) for seed, count in enumerate([3, 3, 3, 2, 2, 2, 3, 2, 4, 4, 4, 3])]
    traced = both(Asking, batches, window=2)
    (retired,) = traced.report.retirements
    assert retired.label is Label.CAPTURE
    assert "captur" in retired.reason
    counts = {layout.layout[:1]: (layout.recorded, layout.replayed) for layout in traced.report.layouts}
    assert counts == {"3": (0, 0), "2": (1, 3), "4": (1, 2)}


def test_failed_capture_gives_its_memory_back() -> None:
    """Ten failed captures hold no more memory than one, and the caller's stream stays current."""
    network = Asking().cuda()
    before = torch.cuda.current_stream()
    held = []
    with NetworkReplay(network, layouts=32) as replay:
        for size in range(12, 22):
            for seed in range(2):
                network.zero_grad()
                squares(network(batch(3, seed, size))).backward()
            torch.cuda.empty_cache()
            held.append(torch.cuda.memory_reserved())
    assert {one.label for one in replay.report().retirements} == {Label.CAPTURE}
    assert torch.cuda.current_stream() == before
    assert held[-1] - held[0] <= 8 << 20


def test_strict_raises_instead_of_retiring() -> None:
    network = Asking().cuda()
    with NetworkReplay(network, strict=True) as replay:
        squares(network(batch(3, 0))).backward()
        with pytest.raises(RetiredError, match="capture-failed"):
            network(batch(3, 1))
    assert [one.label for one in replay.report().retirements] == [Label.CAPTURE]


class Counting(Small):
    """Replaces an attribute in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def test_attribute_written_in_forward_retires_and_counts_right() -> None:
    """What a replay would not do again is found at capture, and put back to where it was."""
    network = Counting().cuda()
    with NetworkReplay(network) as replay:
        for seed in range(3):
            squares(network(batch(2, seed))).backward()
    assert [one.label for one in replay.report().retirements] == [Label.STATE]
    assert network.calls == 3


class Writing(Small):
    """Writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2))


def test_input_written_in_forward_retires() -> None:
    traced = both(Writing, [batch(2, seed) for seed in range(3)])
    assert [one.label for one in traced.report.retirements] == [Label.INPUT]


# Weights and outputs without gradients


def test_unused_weight_has_no_gradient() -> None:
    """None stays None; zeros would let weight decay and momentum move the weight."""
    traced = both(Small, [batch(2, seed) for seed in range(4)])
    assert traced.report.replayed == 3
    assert "gradient.spare" not in traced.states[-1]


def test_output_without_gradient_leaves_its_weights_without() -> None:
    """A loss that does not use an output gives no gradient to the weights behind it."""
    traced = both(TwoHeads, [batch(2, seed) for seed in range(4)], loss=lambda outputs: squares(outputs[0]))
    assert traced.report.replayed == 3
    assert "gradient.second.weight" not in traced.states[-1]


def test_loss_that_changes_its_mind_is_recomputed() -> None:
    """Where the loss uses other outputs than recorded, that one backward runs natively, with the same dropout."""
    calls = iter(range(100))

    def moody(outputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        first, second = outputs
        return squares(first) if next(calls) % 6 in (2, 3) else squares(first) + squares(second)

    traced = both(TwoHeads, [batch(2, seed) for seed in range(6)], loss=moody)
    (layout,) = traced.report.layouts
    assert (layout.recorded, layout.replayed, layout.recomputed) == (1, 5, 2)


@pytest.mark.parametrize("loss", [torch.sum, lambda output: output.t().float().square().mean()], ids=["sum", "strided"])
def test_gradient_of_any_stride_matches(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The gradients that the loss hands back keep their strides, also the expanded one of a sum."""
    assert both(Small, [batch(2, seed) for seed in range(4)], loss=loss).report.replayed == 3


# Overlap, layouts, moves


def train_pairs(replay: bool, joint: Sequence[bool]) -> tuple[list[dict[str, torch.Tensor]], Report]:
    """Two forwards a step, gone through backward in one go where `joint`, else one after the other."""
    torch.manual_seed(3)
    network = Small().cuda()
    replaying = NetworkReplay(network)
    if replay:
        replaying.attach()
    gradients = []
    for step, together in enumerate(joint):
        network.zero_grad()
        first, second = squares(network(batch(2, step))), squares(network(batch(2, step + 9)))
        if together:
            (first + second).backward()
        else:
            first.backward()
            second.backward()
        found = {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}
        gradients.append(found)
    replaying.close()
    return gradients, replaying.report()


def test_second_forward_before_backward_runs_native() -> None:
    """While a forward awaits its backward its activations are safe from other replays."""
    native, _ = train_pairs(False, [False] * 6)
    replayed, report = train_pairs(True, [False] * 6)
    for step, (left, right) in enumerate(zip(native, replayed, strict=True)):
        require_equal(left, right, step)
    assert report.retirements == ()
    assert report.replayed == 5
    assert report.layouts[0].native == {"observed": 2, "overlapping": 5}


def test_forwards_that_share_a_backward_are_never_replayed() -> None:
    """Seen while watching: the sum over both would be taken in another order for a weight used more than once."""
    native, _ = train_pairs(False, [True] * 4)
    replayed, report = train_pairs(True, [True] * 4)
    for step, (left, right) in enumerate(zip(native, replayed, strict=True)):
        require_equal(left, right, step)
    assert [one.label for one in report.retirements] == [Label.OVERLAPPING]
    assert (report.recorded, report.replayed) == (0, 0)


def test_forwards_that_share_a_backward_late_retire_from_there_on() -> None:
    """The step that reveals it is right up to the order of its sums; all others are bit for bit native."""
    joint = [False, False, True, False]
    native, _ = train_pairs(False, joint)
    replayed, report = train_pairs(True, joint)
    same = [compare(left, right) is None for left, right in zip(native, replayed, strict=True)]
    assert same[:2] + same[3:] == [True] * 3
    for name, value in native[2].items():
        torch.testing.assert_close(replayed[2][name], value)
    assert [one.label for one in report.retirements] == [Label.OVERLAPPING]
    assert report.native == {"overlapping": 2}


def test_loss_dropped_without_backward_frees_the_turn() -> None:
    network = Small().cuda()
    with NetworkReplay(network) as replay:
        for seed in range(4):
            squares(network(batch(2, seed))).backward()
        network(batch(2, 8))
        squares(network(batch(2, 9))).backward()
    assert replay.report().replayed == 5


def test_second_backward_after_the_next_forward_is_refused() -> None:
    """Its activations are gone: an error, never another gradient."""
    network = Small().cuda()
    with NetworkReplay(network):
        squares(network(batch(2, 0))).backward()
        loss = squares(network(batch(2, 1)))
        loss.backward(retain_graph=True)
        squares(network(batch(2, 2))).backward()
        with pytest.raises(ReplayError, match="second time"):
            loss.backward()


def test_layouts_beyond_the_cap_run_native() -> None:
    batches = [batch(2 + seed % 3, seed) for seed in range(9)]
    traced = both(Small, batches, options={"layouts": 2})
    assert [one.label for one in traced.report.retirements] == [Label.LAYOUTS]
    assert traced.report.recorded == 2
    # The third layout was watched once, before the others were recorded.
    assert traced.report.native["layouts-cap"] == 2


def test_weights_at_new_addresses_are_recorded_anew() -> None:
    """`load_state_dict(assign=True)` in the middle leaves nothing reading the old weights."""

    def move(step: int, network: nn.Module) -> None:
        if step == 4:
            state = {name: value.clone() for name, value in network.state_dict().items()}
            network.load_state_dict(state, assign=True)

    native = train(Small, [batch(2, seed) for seed in range(7)], replay=False, before_step=move)
    replayed = train(Small, [batch(2, seed) for seed in range(7)], replay=True, before_step=move)
    require_same(native, replayed)
    assert replayed.report.recorded == 2
    assert replayed.report.replayed == 6


def test_hooks_inside_the_network_run_native() -> None:
    """A hook on an inner module fires in every forward; on the network itself it fires around the replay."""
    network = Small().cuda()
    inner, outer = [], []
    network.register_forward_hook(lambda *_: outer.append(1))
    with NetworkReplay(network) as replay:
        for seed in range(3):
            squares(network(batch(2, seed))).backward()
        network.norm.register_forward_hook(lambda *_: inner.append(1))
        for seed in range(3):
            squares(network(batch(2, seed))).backward()
    assert (len(outer), len(inner)) == (6, 3)
    assert replay.report().replayed == 2
    assert replay.report().native == {"hooks": 3}


def test_capture_beside_a_pinning_loader() -> None:
    """The loader's pin-memory thread allocates during the capture, and neither disturbs the other."""
    images = torch.rand(64, 3, 12, 12)
    network = Small().cuda()
    seen = 0
    with NetworkReplay(network) as replay:
        for part in DataLoader(images, batch_size=2, num_workers=1, pin_memory=True, multiprocessing_context="spawn"):
            squares(network(part.cuda(non_blocking=True))).backward()
            seen += 1
    assert seen == 32
    assert replay.report().replayed == 31
    assert replay.report().retirements == ()
