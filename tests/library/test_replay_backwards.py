"""Backwards that want more of a forward than one replay gives: to be differentiated, or to go through it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from replay_cases import DEVICES, both_on, replay_of, rows, steps_on
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from graphreplay import Label, NetworkReplay, ReplayError, Report
from graphreplay.testing import compare

pytestmark = pytest.mark.parametrize("device", DEVICES)

Step = Callable[[nn.Module, int], object]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def plain(net: nn.Module, x: torch.Tensor) -> None:
    net(x).square().mean().backward()


def penalty(net: nn.Module, x: torch.Tensor) -> None:
    """A gradient penalty in a pass of its own."""
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()


def joint_penalty(net: nn.Module, x: torch.Tensor) -> None:
    """Loss and penalty in one backward, which goes through the forward again."""
    output = net(x)
    (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    (output.square().mean() + gradient.square().sum()).backward()


def weight_penalty(net: nn.Module, x: torch.Tensor) -> None:
    """The norm of the weights' gradients, with hooks on two weights that must be called once for each backward."""
    found = torch.autograd.grad(net(x).square().mean(), list(net.parameters()), create_graph=True)
    sum(one.square().sum() for one in found).backward()


def adaptive(net: nn.Module, x: torch.Tensor) -> None:
    """A first backward for the last layer's gradient alone, as of VQGAN's adaptive weight."""
    loss = net(x).square().mean()
    (gradient,) = torch.autograd.grad(loss, net[-1].weight, retain_graph=True)
    (loss * gradient.norm().detach()).backward()


def batched(net: nn.Module, x: torch.Tensor) -> None:
    """A Jacobian by many backwards in one, and a plain one."""
    output = net(x)
    every = torch.eye(output.numel(), device=x.device).view(-1, *output.shape)
    (rows_of,) = torch.autograd.grad(output, x, every, is_grads_batched=True, retain_graph=True)
    (output.square().mean() * rows_of.norm().detach()).backward()


def twice(net: nn.Module, x: torch.Tensor) -> None:
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def thrice_in_evaluation(net: nn.Module, x: torch.Tensor) -> None:
    """The forward counts as it was, not as the modules are set when backward comes."""
    loss = net(x).square().mean()
    loss.backward(retain_graph=True)
    net.eval()
    loss.backward(retain_graph=True)
    loss.backward()
    net.train()


def on(device: str, late: Step, since: int) -> Step:
    """Plain steps, and from step `since` on the other ones."""
    return lambda net, index: (plain if index < since else late)(net, rows(5, index, device).requires_grad_())


def require_retired(report: Report, replayed: int, words: str) -> None:
    (retirement,) = report.retirements
    assert retirement.label is Label.BACKWARDS
    assert words in retirement.reason
    assert report.replayed == replayed


EXACT = [
    (penalty, "create_graph"),
    (batched, "is_grads_batched"),
    (adaptive, "again"),
    (twice, "again"),
    (thrice_in_evaluation, "again"),
]


@pytest.mark.parametrize("late", [penalty, joint_penalty, weight_penalty, batched, adaptive, twice])
def test_seen_from_the_start_such_a_layout_is_never_recorded(device: str, late: Step) -> None:
    report = both_on(device, network, on(device, late, 0))
    words = {batched: "is_grads_batched", adaptive: "", twice: ""}
    require_retired(report, 0, words.get(late, "create_graph"))
    assert report.layouts[0].native == {"observed": 1, "several-backwards": 5}


@pytest.mark.parametrize(("late", "words"), EXACT)
def test_begun_late_it_is_served_once_and_the_layout_retires(device: str, late: Step, words: str) -> None:
    report = both_on(device, network, on(device, late, 3))
    require_retired(report, 3, words)
    assert report.layouts[0].native == {"observed": 1, "several-backwards": 2}


@pytest.mark.parametrize("late", [joint_penalty, weight_penalty])
def test_late_penalty_through_a_loss_with_a_gradient_of_its_own(device: str, late: Step) -> None:
    """Such a penalty's backward reaches the replayed forward by two ways. In the step that reveals it their sum is
    right up to its order; nothing of it is lost, and the steps before are bit for bit native."""
    native, replayed = (steps_on(device, network, on(device, late, 3), 4, replay) for replay in (False, True))
    for left, right in zip(native.states[:3], replayed.states[:3], strict=True):
        assert compare(left, right) is None
    for name, value in native.states[3].items():
        torch.testing.assert_close(replayed.states[3][name], value)
    require_retired(replayed.report, 3, "create_graph")


def test_penalty_of_every_fourth_step_in_a_layout_of_its_own(device: str) -> None:
    """Lazy regularization: the images want a gradient only where it comes. The plain steps are replayed all along."""

    def step(net: nn.Module, index: int) -> None:
        x = rows(5, index, device)
        penalty(net, x.requires_grad_()) if index % 4 == 3 else plain(net, x)

    report = both_on(device, network, step, 12)
    require_retired(report, 8, "create_graph")


@pytest.mark.parametrize("late", [penalty, twice])
def test_hooks_are_called_once_for_each_backward(device: str, late: Step) -> None:
    """Those of weights, and those of tensors that the input comes from: they scale, so that twice would show."""

    def step(net: nn.Module, index: int) -> None:
        scale = torch.ones(1, device=device, requires_grad=True)
        x = rows(5, index, device) * scale
        x.register_hook(lambda gradient: gradient * 2)
        (plain if index < 3 else late)(net, x)

    def make() -> nn.Module:
        net = network()
        net[0].weight.register_hook(lambda gradient: gradient * 3)
        return net

    assert both_on(device, make, step).replayed == 3


def test_dropout_is_the_same_in_a_further_backward(device: str) -> None:
    """On the CPU without: a rehearsal retires what draws random numbers, since it draws them on the host."""
    chance = 0.5 if device == "cuda" else 0.0

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 64), nn.Dropout(chance), nn.Linear(64, 2))

    assert both_on(device, make, on(device, twice, 3)).replayed == 3


class Reading(nn.Module):
    """Reads a buffer that it has just written, which torch's own norms do not."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        self.mean.mul_(0.5).add_(x.detach().mean(0))
        return x * self.mean.clone()


def normed() -> nn.Module:
    """Iterates on two buffers in each forward, and scales by what it has come to."""
    return nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh())


def varied(net: nn.Module, x: torch.Tensor) -> None:
    """Its gradients are of another form than the plain step's."""
    net(x).sum().backward()


@pytest.mark.parametrize("late", [varied, twice, penalty])
@pytest.mark.parametrize("make", [Reading, normed, network])
def test_what_is_computed_natively_meets_the_buffers_of_its_forward(
    device: str, make: Callable[[], nn.Module], late: Step
) -> None:
    report = both_on(device, make, on(device, late, 3))
    assert report.layouts[0].recomputed == (3 if late is varied else 1)


def kept_loss(device: str) -> tuple[nn.Module, torch.Tensor, NetworkReplay]:
    """A network whose replayed forward was gone through once, the loss, and the replay."""
    net = network().to(device)
    replay = replay_of(net).attach()
    plain(net, rows(5, 0, device))
    net.zero_grad()
    loss = net(rows(5, 1, device)).square().mean()
    loss.backward(retain_graph=True)
    return net, loss, replay


def write_weight(net: nn.Module) -> None:
    with torch.no_grad():
        net[0].weight.mul_(2)


def move_weight(net: nn.Module) -> None:
    net[0].weight.data = net[0].weight.data.clone()


def freeze_weight(net: nn.Module) -> None:
    net[0].weight.requires_grad_(False)


def replay_next(net: nn.Module) -> None:
    plain(net, rows(5, 2, net[0].weight.device.type))


@pytest.mark.parametrize(
    ("meanwhile", "words"),
    [(replay_next, "next forward"), (write_weight, "have changed"), (move_weight, "replaced"), (freeze_weight, "re")],
)
def test_further_backward_that_comes_too_late_is_refused(
    device: str, meanwhile: Callable[[nn.Module], None], words: str
) -> None:
    """An error that says why, never another gradient."""
    net, loss, _ = kept_loss(device)
    meanwhile(net)
    before = [one.grad.clone() for one in net.parameters()]
    with pytest.raises(ReplayError, match=words):
        loss.backward()
    assert all(torch.equal(one.grad, kept) for one, kept in zip(net.parameters(), before, strict=True))


def test_input_written_before_a_further_backward_is_refused(device: str) -> None:
    net = network().to(device)
    with replay_of(net):
        for seed in range(2):
            x = rows(5, seed, device).requires_grad_() * 1
            loss = net(x).square().mean()
            loss.backward(retain_graph=seed == 1)
        x.detach().zero_()
        with pytest.raises(ReplayError, match="in place"):
            loss.backward()


def test_further_backward_of_a_graph_that_was_not_kept(device: str) -> None:
    """Natively torch refuses it in the same words, if the loss before it has kept anything."""
    net = network().to(device)
    with replay_of(net):
        plain(net, rows(5, 0, device))
        output = net(rows(5, 1, device))
        output.sum().backward()
        with pytest.raises(ReplayError, match="retain_graph"):
            output.sum().backward()


def test_further_backward_outlives_the_replay(device: str) -> None:
    net, loss, replay = kept_loss(device)
    first = [one.grad.clone() for one in net.parameters()]
    net.zero_grad()
    replay.close()
    loss.backward()
    assert all(torch.equal(one.grad, kept) for one, kept in zip(net.parameters(), first, strict=True))


# Backward within an autocast region


@contextlib.contextmanager
def region(device: str, dtype: torch.dtype = torch.float16) -> Iterator[None]:
    """An autocast region for CUDA. On a CPU it casts nothing, but counts."""
    if device == "cuda":
        with torch.autocast("cuda", dtype):
            yield
        return
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


class Precise(nn.Module):
    """Its last product is taken in full precision; natively the backward of that one is too, outside of a region."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 64)
        self.leave = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x).float()
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x, self.leave.weight)


def cast_step(device: str, inside: Callable[[int], bool], dtype: torch.dtype = torch.float16) -> Step:
    """Forward in a region of half precision, and backward in a region where `inside` says so."""

    def step(net: nn.Module, index: int) -> None:
        with region(device):
            loss = net(rows(5, index, device)).square().mean()
        with region(device, dtype) if inside(index) else contextlib.nullcontext():
            loss.backward()

    return step


# Without a GPU torch warns of each region for it, and has it cast nothing.
cast = pytest.mark.filterwarnings("ignore:(CUDA is not available or|User provided device_type of 'cuda')")


@cast
@pytest.mark.parametrize(
    ("inside", "recomputed"),
    [(lambda _: True, 0), (lambda index: index > 2, 5), (lambda index: index == 4, 1), (lambda index: index < 4, 4)],
    ids=["always", "from-the-third-step-on", "once", "no-longer"],
)
def test_backward_counts_with_the_region_it_is_called_in(
    device: str, inside: Callable[[int], bool], recomputed: int
) -> None:
    report = both_on(device, Precise, cast_step(device, inside), 8)
    (layout,) = report.layouts
    assert (layout.recorded, layout.replayed, layout.recomputed) == (1, 7, recomputed)
    assert report.retirements == ()
    if device == "cuda":  # The region makes a difference.
        one, other = (
            steps_on(device, Precise, cast_step(device, lambda _, inside=inside: inside), 1, replay=False).states[0]
            for inside in (True, False)
        )
        assert compare(one, other) is not None


@cast
def test_regions_that_differ_between_backwards_retire_in_the_end(device: str) -> None:
    report = both_on(device, Precise, cast_step(device, lambda index: index > 1), 14)
    assert [one.label for one in report.retirements] == [Label.GRADIENTS]
    assert report.layouts[0].recomputed == 9


@cast
@pytest.mark.parametrize("late", [penalty, twice])
def test_what_is_computed_natively_takes_the_region_of_its_backward(device: str, late: Step) -> None:
    def step(net: nn.Module, index: int) -> None:
        with region(device):
            (plain if index < 3 else late)(net, rows(5, index, device).requires_grad_())

    report = both_on(device, Precise, step)
    assert (report.replayed, report.layouts[0].recomputed) == (3, 1)
