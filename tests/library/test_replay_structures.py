"""What goes into a network and comes out of it: the same tensor twice, an input or a weight that comes out again, and
containers of all kinds. A replay's outputs are built as the native ones."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from replay_cases import DEVICES, both_on, replay_of, rows, steps_on
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from graphreplay import Label
from graphreplay.errors import UnrecordableError
from graphreplay.structure import flatten, given_in, known, rebuild
from graphreplay.testing import same_bits

on_devices = pytest.mark.parametrize("device", DEVICES)


class Base(nn.Module):
    """Two layers, a weight that some forwards return, and a buffer that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 4)
        self.leave = nn.Linear(4, 4)
        self.level = nn.Parameter(torch.full((4,), 0.3))
        self.register_buffer("seen", torch.zeros(()))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.leave(self.enter(x).tanh())


class Returned(Base):
    """The weight is returned and not used."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x), self.level


class ReturnedAndUsed(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x) * self.level, self.level


class ReturnedTwice(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return {"y": self.body(x), "levels": [self.level, self.level]}


class ReturnedAndUsedTwice(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x) * self.level + (self.level * 3).exp(), self.level


class Frozen(Returned):
    def __init__(self) -> None:
        super().__init__()
        self.level.requires_grad_(False)


class BufferReturned(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x), self.seen


class InputReturned(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x), x


class InputReturnedAndUsedTwice(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x) + self.body(x * 2), x


def loss_of(outputs: Any) -> torch.Tensor:
    """A loss that uses each output in two places."""
    y, other = outputs if isinstance(outputs, tuple) else (outputs["y"], outputs["levels"][1])
    return y.square().mean() * other.exp().mean() + other.sum()


def in_the_loss(net: nn.Module, x: torch.Tensor) -> None:
    loss_of(net(x)).backward()


def beside_the_loss(net: nn.Module, x: torch.Tensor) -> None:
    """The weight is also taken from the network itself."""
    (loss_of(net(x)) + net.level.square().sum()).backward()


def left_out(net: nn.Module, x: torch.Tensor) -> None:
    outputs = net(x)
    (outputs["y"] if isinstance(outputs, dict) else outputs[0]).square().mean().backward()


USES = [in_the_loss, beside_the_loss, left_out]


@on_devices
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", [Returned, ReturnedAndUsed, ReturnedTwice, Frozen, BufferReturned])
def test_returned_weights_and_buffers_match(device: str, make: type[Base], use: Callable[..., None]) -> None:
    """In every step of the fit, and in the middle of a window of two."""
    step = lambda net, index: [use(net, rows(5, 2 * index + part, device)) for part in range(2)]  # noqa: E731
    report = both_on(device, make, step)
    assert (report.recorded, report.replayed, report.retirements) == (1, 11, ())


@on_devices
@pytest.mark.parametrize("use", USES)
def test_a_returned_input_matches(device: str, use: Callable[..., None]) -> None:
    """A leaf, and the output of another layer, which gets gradients in other ways too."""
    for leaf in (True, False):
        found: list[torch.Tensor] = []

        def step(net: nn.Module, index: int, leaf: bool = leaf, found: list[torch.Tensor] = found) -> None:
            start = rows(5, index, device).requires_grad_()
            use(net, start if leaf else start.sin())
            found.append(start.grad)

        report = both_on(device, InputReturned, step)
        assert (report.recorded, report.replayed, report.retirements) == (1, 5, ())
        assert all(same_bits(left, right) for left, right in zip(found[:6], found[6:], strict=True))


@on_devices
def test_what_is_returned_is_the_thing_itself(device: str) -> None:
    """As natively: the weight, the buffer with its newest value, the call's own input."""
    for make in (Returned, BufferReturned, InputReturned):
        net = make().to(device)
        with replay_of(net, strict=True) as replay:
            for seed in range(4):
                x = rows(5, seed, device)
                y, other = net(x)
                assert other is {Returned: net.level, BufferReturned: net.seen, InputReturned: x}[make]
                y.sum().backward()
        assert replay.report().replayed == 3


@on_devices
@pytest.mark.parametrize("make", [ReturnedAndUsedTwice, InputReturnedAndUsedTwice])
def test_what_is_returned_and_used_in_several_places_runs_native(device: str, make: type[Base]) -> None:
    """Its gradients are summed one by one natively; a replay would hand over one sum."""
    report = both_on(device, make, lambda net, index: in_the_loss(net, rows(5, index, device).requires_grad_()))
    assert [one.label for one in report.retirements] == [Label.STRUCTURE]
    assert report.replayed == 0


@on_devices
@pytest.mark.parametrize("make", [Returned, ReturnedAndUsed, InputReturned])
def test_no_hook_is_left_on_what_lives_on(device: str, make: type[Base]) -> None:
    """However many native forwards there were, with a backward or without, and after the end."""
    net, x = make().to(device), rows(5, 0, device).requires_grad_()
    replay = replay_of(net, strict=True, sightings=100).attach()
    for seed in range(20):
        outputs = net(x)
        if seed % 2:
            loss_of(outputs).backward()
    assert not net.level._backward_hooks
    assert not x._backward_hooks
    (loss_of(net(x)) + loss_of((net.level, net.level))).backward()
    assert replay.report().native_by_cause == {"observed": 21}
    replay.close()


@on_devices
def test_forwards_watched_at_the_end_are_watched_no_longer(device: str) -> None:
    """What comes of them later is nobody's business: strict would raise in the caller's backward."""
    net = Returned().to(device)
    with replay_of(net, strict=True):
        losses = [loss_of(net(rows(count, 0, device))) for count in (4, 5)]
    sum(losses).backward()


class Twins(Base):
    """One tensor in two places of the outputs."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.enter(x)
        last = self.leave(first.tanh())
        return {"features": [first, last], "last": last}


@on_devices
@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out["features"][0].square().mean() + out["features"][1].square().mean(),
        lambda out: out["last"].square().mean(),
        lambda out: out["last"].square().mean() + out["features"][1].sum() + out["features"][1].sin().mean(),
    ],
    ids=["the-one", "the-other", "both"],
)
def test_one_tensor_in_two_places_matches(device: str, loss: Callable[[Any], torch.Tensor]) -> None:
    def step(net: nn.Module, index: int) -> None:
        outputs = net(rows(5, index, device))
        assert outputs["features"][1] is outputs["last"]
        loss(outputs).backward()

    report = both_on(device, Twins, step, 12)
    assert (report.replayed, report.retirements) == (11, ())
    assert report.layouts[0].recomputed <= 1


class Chained(Base):
    """Each output is computed of the one before it."""

    def forward(self, x: torch.Tensor) -> Any:
        first = self.enter(x)
        second = first.tanh() * 2
        return first, second, self.leave(second)


@on_devices
@pytest.mark.parametrize("used", [(2,), (1,), (0, 2), (0, 1, 2)])
def test_output_that_gets_a_gradient_by_another_one_alone_is_no_demand(device: str, used: tuple[int, ...]) -> None:
    """The native pass cannot tell; the first replay does, and one more recording serves all that follow."""

    def step(net: nn.Module, index: int) -> None:
        outputs = net(rows(5, index, device))
        sum(outputs[one].square().mean() for one in used).backward()

    report = both_on(device, Chained, step, 14)
    plain = used == tuple(range(max(used) + 1))
    (layout,) = report.layouts
    assert (layout.replayed, layout.recomputed, layout.recorded) == (13, 0 if plain else 1, 1 if plain else 2)
    assert report.retirements == ()


@on_devices
def test_odd_first_replay_is_no_lesson_for_good(device: str) -> None:
    """The loss leaves an output out when the layout is replayed first, and never again."""

    def step(net: nn.Module, index: int) -> None:
        first, second, third = net(rows(5, index, device))
        loss = first.square().mean() + second.square().mean()
        (loss if index == 1 else loss + third.square().mean()).backward()

    report = both_on(device, Chained, step, 14)
    (layout,) = report.layouts
    assert (layout.replayed, layout.recomputed, layout.recorded) == (13, 2, 3)
    assert report.retirements == ()


@on_devices
def test_loss_that_never_settles_retires_its_layout(device: str) -> None:
    def step(net: nn.Module, index: int) -> None:
        outputs = net(rows(5, index, device))
        sum(output.square().mean() for output in outputs[: 1 + index % 3]).backward()

    report = both_on(device, Chained, step, 20)
    assert [one.label for one in report.retirements] == [Label.GRADIENTS]
    assert report.layouts[0].recorded == 3


class Pair(Base):
    """Two inputs, each used twice."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.body(left * 0.7) + (self.body(right).sin() * left[:, :1]) + right[:, 1:2].exp() * 0.3


@on_devices
def test_one_tensor_passed_twice_is_a_layout_of_its_own(device: str) -> None:
    """With one gradient, summed as natively; and its identity is the same inside."""
    found: list[torch.Tensor] = []

    def step(net: nn.Module, index: int) -> None:
        left, right = (rows(5, seed, device).requires_grad_() for seed in (index, index + 50))
        net(left, left if index % 2 else right).square().mean().backward()
        found.append(left.grad)

    report = both_on(device, Pair, step, 12)
    assert all(same_bits(one, other) for one, other in zip(found[:12], found[12:], strict=True))
    assert [one.replayed for one in report.layouts] == [5, 5]


class Named(NamedTuple):
    y: torch.Tensor
    scale: float


@dataclass
class Plain:
    y: torch.Tensor
    scale: float = 2.0
    rest: Any = None


@dataclass(frozen=True, kw_only=True)
class Tight:
    __slots__ = ("scale", "y")
    y: torch.Tensor
    scale: float


@dataclass
class Mapped(OrderedDict):
    """A dataclass that is a mapping of its fields as well, as libraries of language models have them."""

    y: torch.Tensor = None
    rest: Any = None

    def __post_init__(self) -> None:
        for name in ("y", "rest"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class Wrapping(Base):
    """Takes its input in such a container, and returns its output in one."""

    wrap: Callable[[torch.Tensor], Any]

    def forward(self, given: Any) -> Any:
        return type(self).wrap(self.body(tensor_in(given)))


def tensor_in(container: Any) -> torch.Tensor:
    return container["y"] if isinstance(container, dict) else getattr(container, "y", None)


WRAPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "ordered": lambda y: OrderedDict(a=y.shape, y=y),
    "named": lambda y: Named(y, 0.5),
    "dataclass": lambda y: Plain(y, 0.5, [y, y.shape]),
    "nested": lambda y: Plain(y, 0.5, Plain(y.detach() + 1, rest=OrderedDict(z=None))),
    "frozen": lambda y: Tight(y=y, scale=0.5),
    "mapped": Mapped,
}


@on_devices
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_containers_go_in_and_come_out(device: str, wrap: Callable[[torch.Tensor], Any]) -> None:
    make = type("Made", (Wrapping,), {"wrap": staticmethod(wrap)})
    kinds: list[object] = []

    def step(net: nn.Module, index: int) -> None:
        returned = net(wrap(rows(5, index, device)))
        kinds.append((type(returned), str(rebuild_without_tensors(returned))))
        tensor_in(returned).square().mean().backward()

    report = both_on(device, make, step)
    assert (report.replayed, report.retirements) == (5, ())
    assert len(set(kinds)) == 1


def rebuild_without_tensors(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    return rebuild(flatten(value, tensors), [torch.zeros(0)] * len(tensors))


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_containers_are_rebuilt_as_they_were(wrap: Callable[[torch.Tensor], Any]) -> None:
    value = wrap(torch.zeros(2, 3))
    tensors: list[torch.Tensor] = []
    again = rebuild(flatten(value, tensors), tensors)
    assert type(again) is type(value)
    assert tensor_in(again) is tensor_in(value)
    assert repr(again) == repr(value)


@dataclass
class Derived:
    """Made anew it would divide again."""

    y: torch.Tensor

    def __post_init__(self) -> None:
        self.y = self.y / 2


@dataclass
class Partial:
    y: torch.Tensor
    made: int = field(default=0, init=False)


@dataclass
class Hidden:
    y: torch.Tensor
    start: InitVar[int] = 0

    def __post_init__(self, start: int) -> None:
        self.beside = start


@dataclass
class Layered(nn.Module):
    y: torch.Tensor

    def __hash__(self) -> int:
        return 0

    def __post_init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("kind", [Derived, Partial, Hidden, Layered])
def test_dataclasses_that_their_fields_do_not_make_are_refused(kind: type) -> None:
    made = object.__new__(kind)
    vars(made).update(vars(Plain(torch.zeros(1))) if kind is Layered else vars(kind(torch.zeros(1))))
    with pytest.raises(UnrecordableError, match=kind.__name__):
        flatten(made, [])


def test_known_tensors_are_named_and_not_taken() -> None:
    weight, other = torch.zeros(1), torch.zeros(2)
    tensors: list[torch.Tensor] = []
    node = flatten([weight, other, other, weight], tensors, known([other.clone(), weight]))
    assert len(tensors) == 1
    assert given_in(node) == {1}
    again = rebuild(node, tensors, ["-", weight])
    assert again[0] is again[3] is weight
    assert again[1] is again[2] is other


def parametrized() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


def unparametrized() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@on_devices
@pytest.mark.parametrize("whole", [True, False], ids=["step", "forward"])
@pytest.mark.parametrize("since", [0, 3])
@pytest.mark.parametrize(("make", "left"), [(parametrized, True), (unparametrized, False)])
def test_weights_that_torch_caches_are_left_alone(
    device: str, make: Callable[[], nn.Module], left: bool, since: int, whole: bool
) -> None:
    """Natively as long as the region lasts, also twice in one; replayed before, after and in between."""

    def step(net: nn.Module, index: int) -> None:
        with contextlib.ExitStack() as region:
            if since <= index < since + 3:
                region.enter_context(parametrize.cached())
            outputs = [net(rows(5, index + 20 * part, device)) for part in range(1 + (since <= index < since + 3))]
            loss = sum(output.square().mean() for output in outputs[-1:])
            outputs.clear()
            if not whole:
                region.close()
            loss.backward()

    report = both_on(device, make, step, 9)
    assert report.retirements == ()
    causes = report.native_by_cause
    assert causes["observed" if not left or since else "weights-cached"] > 0
    assert causes.get("weights-cached", 0) == (6 if left else 0)
    assert report.recorded == 1
    assert report.replayed + sum(causes.values()) == 12


def test_traces_of_both_runs_are_there() -> None:
    """What the tests above compare is not empty."""
    trace = steps_on("cpu", Returned, lambda net, index: in_the_loss(net, rows(5, index, "cpu")), 3, replay=True)
    assert "level" in trace.states[2]
    assert trace.report.replayed == 2
