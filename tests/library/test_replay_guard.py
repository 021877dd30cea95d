"""What a recording has baked in is checked in every forward: a change is noticed at the very next one.

By `Rehearsal`, which replays on the CPU. Its graphs run the network's Python again and would follow some changes, so it
is the books that show whether the stale recording was used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from graphreplay import Label, NetworkReplay
from graphreplay.testing import compare
from graphreplay.testing.rehearsal import Rehearsal
from graphreplay.wiring import Wiring


class Scale(nn.Module):
    """One weight of one element, so that `==` of two of them has a truth value, and a buffer that is only read."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.zeros(4))
        self.sizes = (1, 1)
        self.rate = 1.0
        self.notes: list[str] = []
        self.offset = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.shift


class Net(nn.Sequential):
    """Linear, batch norm, an activation without weights, a scale, and two linear layers of one shape."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), Scale(), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        )


def images(seed: int) -> torch.Tensor:
    return torch.rand(5, 3, generator=torch.Generator().manual_seed(seed))


def step(network: nn.Module, seed: int) -> None:
    network.zero_grad()
    network(images(seed)).square().mean().backward()


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(1)
    return Net().train()


@pytest.fixture
def replay(network: nn.Sequential) -> Iterator[NetworkReplay]:
    """A replay whose recording has been used."""
    with Rehearsal(network) as replay:
        for seed in range(3):
            step(network, seed)
        assert (replay.report().recorded, replay.report().replayed) == (1, 2)
        yield replay


def parametrized(network: nn.Sequential) -> None:
    parametrize.register_parametrization(network[4], "weight", nn.Identity())


def twin(network: nn.Sequential) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def swap_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def assign(store: dict[str, object], name: str, value: object) -> None:
    store[name] = value


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "load-assign": lambda net: net.load_state_dict(twin(net), assign=True),
    "to-and-fro": lambda net: net.double().float(),
    "weight-data": lambda net: swap_data(net[5].weight),
    "weight-of-one-element": lambda net: setattr(net[3], "factor", nn.Parameter(net[3].factor.detach().clone())),
    "weight-over-the-same-memory": lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight.data)),
    "weight-by-hand": lambda net: assign(net[0]._parameters, "bias", nn.Parameter(net[0].bias.data)),
    "weight-added": lambda net: net[2].register_parameter("spare", nn.Parameter(torch.ones(2))),
    "weight-added-at-the-end": lambda net: net[5].register_parameter("spare", nn.Parameter(torch.ones(2))),
    "weight-in-place-of-none": lambda net: setattr(net[4], "bias", nn.Parameter(torch.ones(4))),
    "weight-removed": lambda net: setattr(net[5], "bias", None),
    "tied": lambda net: setattr(net[5], "weight", net[4].weight),
    "frozen": lambda net: net[0].requires_grad_(False),
    "buffer-replaced": lambda net: setattr(net[1], "running_mean", net[1].running_mean.clone()),
    "buffer-counter-replaced": lambda net: setattr(net[1], "num_batches_tracked", net[1].num_batches_tracked.clone()),
    "buffer-data": lambda net: swap_data(net[1].running_var),
    "buffer-wants-gradient": lambda net: net[3].shift.requires_grad_(),
    "buffer-added": lambda net: net[2].register_buffer("seen", torch.zeros(1)),
    "module-replaced": lambda net: assign(net._modules, "2", nn.SiLU()),
    "module-with-weights-replaced": lambda net: setattr(net, "0", copy.deepcopy(net[0])),
    "modules-exchanged": lambda net: net._modules.update({"4": net[5], "5": net[4]}),
    "module-added": lambda net: net.append(nn.ReLU()),
    "module-added-to-a-leaf": lambda net: net[2].add_module("inner", nn.ReLU()),
    "module-removed": lambda net: net.pop(-1),
    "parametrization": parametrized,
    "evaluation": lambda net: net[1].eval(),
    "hook": lambda net: net[2].register_forward_hook(lambda *_: None),
    "pre-hook": lambda net: net[2].register_forward_pre_hook(lambda *_: None),
    "backward-hook": lambda net: net[2].register_full_backward_hook(lambda *_: None),
    "backward-pre-hook": lambda net: net[2].register_full_backward_pre_hook(lambda *_: None),
    "attribute": lambda net: setattr(net[1], "momentum", 0.5),
    "attribute-in-a-tuple": lambda net: setattr(net[3], "sizes", (1, 2)),
    "attribute-of-another-kind": lambda net: setattr(net[3], "rate", torch.ones(4)),
    "attribute-that-is-an-object": lambda net: setattr(net[3], "notes", ["another"]),
    "attribute-that-is-a-tensor": lambda net: setattr(net[3], "offset", torch.zeros(1)),
    "attribute-added": lambda net: setattr(net[2], "slope", 0.1),
    "attribute-removed": lambda net: delattr(net[3], "sizes"),
    "attribute-in-place-of-another": lambda net: (delattr(net[3], "sizes"), setattr(net[3], "lengths", (1, 1))),
    "object-in-place-of-another": lambda net: (delattr(net[3], "notes"), setattr(net[3], "words", [])),
    "forward-of-a-child": lambda net: setattr(net[2], "forward", lambda x: x.relu()),
    "hook-by-hand": lambda net: assign(net[2]._forward_hooks, 0, lambda *_: None),
}


def used_stale(network: nn.Module, replay: NetworkReplay) -> bool:
    """Whether one more step replays a recording that was there before it."""
    before = replay.report()
    step(network, 7)
    after = replay.report()
    return after.replayed > before.replayed and after.recorded == before.recorded


def test_what_stays_is_replayed(network: nn.Sequential, replay: NetworkReplay) -> None:
    """The control: nothing changes, or only values do, and the recording serves."""
    assert used_stale(network, replay)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(0.5)
    network.load_state_dict(twin(network))
    network[1].momentum = float("0.1")
    handle = network.register_forward_hook(lambda *_: None)
    assert used_stale(network, replay)
    handle.remove()
    assert used_stale(network, replay)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_noticed_at_the_next_forward(
    network: nn.Sequential, replay: NetworkReplay, change: Callable[[nn.Sequential], object]
) -> None:
    change(network)
    assert not used_stale(network, replay)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    "register",
    [
        torch_module.register_module_forward_hook,
        torch_module.register_module_forward_pre_hook,
        torch_module.register_module_full_backward_hook,
        torch_module.register_module_full_backward_pre_hook,
    ],
    ids=["forward", "forward-pre", "backward", "backward-pre"],
)
def test_hook_of_all_modules_is_noticed(
    network: nn.Sequential, replay: NetworkReplay, register: Callable[[object], torch.utils.hooks.RemovableHandle]
) -> None:
    """While it is there, every forward runs native; afterwards the recording serves again."""
    handle = register(lambda *_: None)
    try:
        assert not used_stale(network, replay)
        assert replay.report().native == {"hooks": 1}
    finally:
        handle.remove()
    assert used_stale(network, replay)


def test_hook_in_a_new_dictionary_is_noticed(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Some tools remove hooks by giving the module an empty dictionary."""
    network[2]._forward_hooks = type(network[2]._forward_hooks)()
    assert used_stale(network, replay)
    network[2].register_forward_hook(lambda *_: None)
    assert not used_stale(network, replay)


def halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def test_hooks_on_saved_tensors_are_noticed(network: nn.Sequential, replay: NetworkReplay) -> None:
    """They may change what a backward computes with, so gradients are those of a native network under them."""
    native = Net().train()
    native.load_state_dict(network.state_dict())
    with torch.autograd.graph.saved_tensors_hooks(halved, lambda saved: saved):
        assert not used_stale(network, replay)
        network.load_state_dict(native.state_dict())
        step(network, 9)
        step(native, 9)
    found, wanted = ({name: one.grad for name, one in net.named_parameters()} for net in (network, native))
    assert compare(wanted, found) is None
    assert replay.report().native == {"hooks": 2}
    assert replay.report().retirements[0].reason.endswith("on saved tensors")
    assert used_stale(network, replay)


def test_refused_hooks_on_saved_tensors_do_not_matter(network: nn.Sequential, replay: NetworkReplay) -> None:
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        assert used_stale(network, replay)


def test_removed_hook_lets_replay_go_on(network: nn.Sequential, replay: NetworkReplay) -> None:
    handle = network[2].register_forward_hook(lambda *_: None)
    assert not used_stale(network, replay)
    handle.remove()
    assert used_stale(network, replay)


def test_flag_that_flips_back_finds_its_recording(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Flags belong to the layout: the other one is recorded beside it."""
    network[1].eval()
    assert not used_stale(network, replay)
    network[1].train()
    assert used_stale(network, replay)
    network[1].eval()
    assert not used_stale(network, replay)
    assert used_stale(network, replay)
    assert [layout.recorded for layout in replay.report().layouts] == [1, 1]


def test_weight_that_thaws_finds_its_recording(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Likewise with frozen weights."""
    network[0].requires_grad_(False)
    assert not used_stale(network, replay)
    network[0].requires_grad_(True)
    assert used_stale(network, replay)
    network[0].requires_grad_(False)
    assert not used_stale(network, replay)
    assert used_stale(network, replay)
    assert [layout.recorded for layout in replay.report().layouts] == [1, 1]


def test_buffer_that_wants_a_gradient_gets_it(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Recorded are the gradients of weights, so the network runs native and says why."""
    network[3].shift.requires_grad_()
    step(network, 9)
    assert network[3].shift.grad is not None
    assert [one.label for one in replay.report().retirements] == [Label.CAPTURE]
    assert "3.shift" in replay.report().retirements[0].reason


def test_gradient_reaches_a_weight_over_the_same_memory(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Its address is the old one's, but it is the new one that natively has the gradient."""
    old = network[0].weight
    network[0].weight = nn.Parameter(old.data)
    old.grad = None
    step(network, 9)
    assert replay.report().recorded == 2
    assert old.grad is None
    assert network[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_scripted_child_is_looked_through() -> None:
    """It keeps its weights in mappings of its own kind."""
    network = nn.Sequential(nn.Linear(2, 2), torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)))
    wiring = Wiring(network)
    wiring.refresh()
    before = wiring.fingerprint()
    assert wiring.fingerprint() is before
    assert [name for name, _ in wiring.weights()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    network[1].weight.requires_grad_(False)
    wiring.refresh()
    assert wiring.wanting() == (True, True, False, True)
    network[1].bias = nn.Parameter(torch.ones(2))
    wiring.refresh()
    assert not before.equals(wiring.fingerprint())


def test_training_flag_may_be_a_property() -> None:
    class Odd(nn.Module):
        flag = True

        @property
        def training(self) -> bool:
            return self.flag

        @training.setter
        def training(self, value: bool) -> None: ...

    wiring = Wiring(nn.Sequential(Odd()))
    assert wiring.training() == (True, True)
    wiring.modules[1].flag = False
    assert wiring.training() == (True, False)


# The whole of it, against native training


def trained(replayed: bool, window: int, clear_after_forward: bool) -> list[dict[str, torch.Tensor]]:
    """The states after each microbatch."""
    torch.manual_seed(1)
    network = Net().train()
    replay = Rehearsal(network, strict=True)
    if replayed:
        replay.attach()
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    states = []
    for seed in range(8):
        loss = network(images(seed)).square().mean()
        if clear_after_forward and seed % window == 0:
            optimizer.zero_grad()
        loss.backward()
        gradients = {f"gradient.{name}": weight.grad.clone() for name, weight in network.named_parameters()}
        states.append({**twin(network), **gradients, "loss": loss.detach().clone()})
        if (seed + 1) % window == 0:
            optimizer.step()
            if not clear_after_forward:
                optimizer.zero_grad()
    assert replay.report().replayed == (7 if replayed else 0)
    return states


@pytest.mark.parametrize("clear_after_forward", [False, True], ids=["cleared-at-step", "cleared-after-forward"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_every_microbatch_matches_native(window: int, clear_after_forward: bool) -> None:
    states = trained(True, window, clear_after_forward)
    for native, replayed in zip(trained(False, window, clear_after_forward), states, strict=True):
        assert compare(native, replayed) is None


class Mixed(nn.Module):
    """Several inputs, of several kinds; two outputs that want a gradient and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor, *, factor: float) -> dict[str, torch.Tensor]:
        found = self.inner(x) * factor + y.sum(1, keepdim=True)
        return {"found": found, "turned": found.t(), "best": found.argmax(1)}


def test_inputs_and_outputs_of_all_kinds_match_native() -> None:
    """Gradients of inputs too; they belong to the caller, as the outputs do."""

    def gradients(replayed: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        network = Mixed().train()
        replay = Rehearsal(network, strict=True)
        if replayed:
            replay.attach()
        found = {}
        for seed in range(4):
            x, y = images(seed), images(seed + 9).requires_grad_()
            outputs = network(x, y, factor=0.5)
            assert not outputs["best"].requires_grad
            (outputs["found"].square().mean() + outputs["turned"][1].sum()).backward()
            found |= {f"y{seed}": y.grad, f"best{seed}": outputs["best"], f"turned{seed}": outputs["turned"].detach()}
        assert replay.report().replayed == (3 if replayed else 0)
        return found | {name: weight.grad for name, weight in network.named_parameters()}

    assert compare(gradients(False), gradients(True)) is None


def test_outputs_belong_to_the_caller(network: nn.Sequential, replay: NetworkReplay) -> None:
    """An output that is kept, viewed, detached or written to neither changes later nor changes anything."""
    kept = network(images(3))
    kept.sum().backward()
    view, detached, copied = kept[1:], kept.detach(), kept.detach().clone()
    other = network(images(4))
    other.sum().backward()
    assert compare({"": copied, "view": copied[1:]}, {"": kept, "view": view}) is None
    with torch.no_grad():
        other.zero_()
    assert compare({"": copied}, {"": detached}) is None
    written = network(images(3)).mul_(2)
    written.sum().backward()
    assert compare({"": copied * 2}, {"": written}) is None
    assert replay.report().replayed == 5


def test_kept_gradients_make_the_next_forward_native(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Until they are let go; and they keep their bits."""
    kept = torch.autograd.grad(network(images(3)).square().mean(), list(network.parameters()))
    copies = [gradient.clone() for gradient in kept]
    assert not used_stale(network, replay)
    assert replay.report().layouts[0].native == {"observed": 1, "gradients-held": 1}
    assert compare({str(i): one for i, one in enumerate(copies)}, {str(i): one for i, one in enumerate(kept)}) is None
    del kept
    assert used_stale(network, replay)


def test_weight_hook_gets_a_gradient_of_its_own(network: nn.Sequential, replay: NetworkReplay) -> None:
    """Registered between the forward and its backward, and kept over the next ones."""
    kept: list[torch.Tensor] = []
    loss = network(images(3)).square().mean()
    network[0].weight.register_hook(kept.append)
    loss.backward()
    copied = kept[0].clone()
    assert used_stale(network, replay)
    assert compare({"": copied}, {"": kept[0]}) is None


@pytest.mark.parametrize("name", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hook_of_a_weight_without_gradient_stays_silent(name: str) -> None:
    """Natively autograd does not come to such a weight; a replay would, with None. Without the hook it goes on."""
    network = Net().train()
    network.register_parameter("spare", nn.Parameter(torch.ones(2)))
    fired: list[object] = []
    with Rehearsal(network) as replay:
        for seed in range(6):
            if seed == 2:
                handle = getattr(network.spare, name)(fired.append)
            if seed == 4:
                handle.remove()
            step(network, seed)
    assert fired == []
    assert replay.report().layouts[0].native == {"observed": 1, "unused-hooked": 2}
    assert replay.report().replayed == 3


def test_replay_retires_in_several_processes(network: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without the callback. With a stand-in for the process group: only its size is asked for."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with Rehearsal(network) as replay:
        step(network, 0)
    assert [one.label for one in replay.report().retirements] == [Label.DISTRIBUTED]


def test_dropout_on_the_host_is_refused() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).train()
    with Rehearsal(network) as replay:
        for seed in range(2):
            step(network, seed)
    assert [one.label for one in replay.report().retirements] == [Label.RANDOM]
