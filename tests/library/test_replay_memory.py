"""Further layouts need no second set of activations on the device, and what is spared costs no bit."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import ClassVar

import pytest
import torch
from replay_cases import require_all_equal, watched
from torch import nn

import graphreplay.capture
import graphreplay.network
import graphreplay.offload
from graphreplay.capture import Recorder
from graphreplay.offload import offloaded
from graphreplay.reference import ReferenceNetwork, detection_loss, reference_batches
from graphreplay.testing import require_equal
from graphreplay.testing.rehearsal import Rehearsal

CPU = torch.device("cpu")
# Not in order of size: a larger layout comes when the recordings of smaller ones hold memory already.
SHAPES = [(8, 320, 320), (8, 352, 320), (8, 384, 384), (8, 288, 320), (8, 256, 256)]
PRECISIONS = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class Kept(torch.autograd.Function):
    """Saves a tensor as it is, and shows how it comes back."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(kept)
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        Kept.found.append(ctx.saved_tensors[0])
        return gradient, None


VIEWS = {
    "whole": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(1, 3),
    "half": lambda x: x.chunk(2, 1)[1],
    "unaligned": lambda x: x.flatten()[3:],
    "expanded": lambda x: x[:1].expand(4, -1, -1, -1),
    "small": lambda x: x[0, 0],
    "none": lambda x: x[:0],
}


def through(view: torch.Tensor, kept: list[torch.Tensor]) -> torch.Tensor:
    """The view as a backward finds it that was kept off the device, after its memory was written over."""
    Kept.found = []
    x = torch.ones(1, device=view.device, requires_grad=True)
    with offloaded(view.device, kept):
        out = Kept.apply(x, view)
    out.backward()
    return Kept.found[0]


def require_as_it_was(view: torch.Tensor, found: torch.Tensor) -> None:
    assert (found.shape, found.stride(), found.device) == (view.shape, view.stride(), view.device)
    assert found.data_ptr() % 512 == view.data_ptr() % 512 or view.device.type == "cpu"
    require_equal({"kept": view}, {"kept": found})


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_kept_tensor_comes_back_as_it_lay(view: object, dtype: torch.dtype) -> None:
    source = torch.arange(4 * 8 * 64 * 64).reshape(4, 8, 64, 64).to(dtype)
    require_as_it_was(view(source), through(view(source), []))


@pytest.mark.gpu
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_kept_tensor_leaves_the_device_and_comes_back_as_it_lay(view: object) -> None:
    source = torch.rand(4, 8, 64, 64, device="cuda")
    require_as_it_was(view(source), through(view(source), []))


def test_weights_and_inputs_stay_where_they_are() -> None:
    weight = torch.rand(1 << 16)
    assert through(weight, [weight]).data_ptr() == weight.data_ptr()
    assert through(weight.view(256, 256).t(), [weight]).data_ptr() == weight.data_ptr()


def test_network_has_the_same_gradients() -> None:
    images, targets = reference_batches([(2, 96, 128)], 1)[0]
    found = []
    for kept in ([images], None):
        torch.manual_seed(0)
        network = ReferenceNetwork(16)
        with offloaded(CPU if kept else torch.device("meta"), kept or []):
            outputs = network(images)
        detection_loss(outputs, targets).backward()
        found.append({name: one.grad for name, one in network.named_parameters() if one.grad is not None})
    require_equal(*found)


class Curved(nn.Module):
    """Calls torch.func in its forward, which refuses hooks on saved tensors; what its forward moves is seen at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 512)
        self.norm = nn.BatchNorm1d(512)
        self.register_buffer("table", torch.rand(512, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x)) @ self.table
        return torch.func.grad(lambda value: value.pow(3).sum())(hidden) + hidden


class Refusing(Curved):
    """Has hooks on saved tensors refused in a part of its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x)) @ self.table
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            return hidden.pow(2)


class Batched(Curved):
    """Calls a part of its forward under vmap, with tensors of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x))
        return torch.func.vmap(lambda row: (row * row.exp().sigmoid()).sin())(hidden)


class Handling(Curved):
    """Answers the refusal with an error of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return super().forward(x)
        except RuntimeError as error:
            raise RuntimeError("no curvature") from error


class Plain(Curved):
    """Does nothing that torch refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)) @ self.table


class Failing(Curved):
    """Cannot take batches of 384."""

    calls: ClassVar[Counter[int]] = (
        Counter()
    )  # Of the class: a forward that fills what its module holds is not recorded.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[len(x)] += 1
        hidden = self.norm(self.first(x))
        if len(x) == 384:
            raise RuntimeError("384 are too many")
        return hidden @ self.table


def trained(make: type[nn.Module], replay: bool) -> tuple[dict[str, torch.Tensor], Rehearsal]:
    """Three layouts, each twice, further ones beside the first one's recording."""
    torch.manual_seed(3)
    network = make()
    replaying = Rehearsal(network)
    if replay:
        replaying.attach()
    for step, count in enumerate((128, 128, 256, 256, 320, 320)):
        x = torch.rand(count, 512, generator=torch.Generator().manual_seed(step))
        network(x).square().mean().backward()
    gradients = {f"{name}.grad": one.grad for name, one in network.named_parameters() if one.grad is not None}
    return {**network.state_dict(), **gradients}, replaying


@pytest.mark.parametrize("make", [Curved, Refusing, Batched, Handling])
def test_network_that_bears_no_hooks_on_saved_tensors_fits_as_natively(make: type[nn.Module]) -> None:
    """What its forward had moved before it was refused is moved once: a norm's statistics and counter."""
    native, _ = trained(make, replay=False)
    replayed, replaying = trained(make, replay=True)
    require_equal(native, replayed)
    report = replaying.report()
    assert (report.retirements, report.recorded, report.replayed) == ((), 3, 3)
    assert report.native_by_cause == {"observed": 3}


def test_pass_whose_activations_the_host_cannot_take_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("no memory on the host")

    native, _ = trained(Plain, replay=False)
    monkeypatch.setattr(graphreplay.offload, "_Packed", full)
    replayed, replaying = trained(Plain, replay=True)
    require_equal(native, replayed)
    assert (replaying.report().recorded, replaying._unsparing) == (3, True)


def test_network_that_fails_raises_its_own_error() -> None:
    Failing.calls.clear()
    _, replaying = trained(Failing, replay=True)
    assert replaying.report().recorded == 3
    with pytest.raises(RuntimeError, match="384 are too many"):
        replaying.network(torch.rand(384, 512))
    assert replaying.network.norm.num_batches_tracked == 7
    # Once, as natively; and what a further layout keeps goes to the host as before.
    assert replaying.network.calls[384] == 1
    assert not replaying._unsparing


def test_buffers_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As weights and inputs do, which live on anyway."""
    kept: list[torch.Tensor] = []

    def seen(device: torch.device, stay: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
        kept[:] = stay
        return offloaded(device, kept)

    monkeypatch.setattr(graphreplay.network, "offloaded", seen)
    _, replaying = trained(Failing, replay=True)
    assert {id(one) for one in kept} > {id(one) for one in replaying.network.state_dict(keep_vars=True).values()}


def train(precision: str, replay: bool, width: int) -> tuple[list[dict[str, torch.Tensor]], int]:
    """Gradients after every shape came twice, and the most memory that was reserved, in bytes.

    The second pass of a shape records it, so that the first one of the next is watched beside that recording.
    """
    torch.manual_seed(3)
    network = ReferenceNetwork(width, dropout=0).cuda()
    states = []
    with watched(network, replay) as replaying:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for images, targets in reference_batches([shape for shape in SHAPES for _ in range(2)], 2 * len(SHAPES)):
            with torch.autocast("cuda", PRECISIONS[precision], enabled=PRECISIONS[precision] is not None):
                outputs = network(images.cuda())
            detection_loss(outputs, [target.cuda() for target in targets]).backward()
        states.append({name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None})
        peak = torch.cuda.max_memory_reserved()
        if replay:
            report = replaying.report()
            assert (report.retirements, report.recorded, report.replayed) == ((), len(SHAPES), len(SHAPES))
    return states, peak


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_five_layouts_reserve_at_most_half_as_much_again_as_native(precision: str) -> None:
    """Whatever the order in which layouts of different sizes come."""
    train(precision, replay=False, width=32)  # What libraries reserve once and keep.
    native, needed = train(precision, replay=False, width=32)
    replayed, reserved = train(precision, replay=True, width=32)
    require_all_equal(native, replayed)
    assert reserved <= 1.5 * needed, f"{reserved >> 20} MiB beside {needed >> 20} MiB natively"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_pass_that_keeps_everything_off_the_device_matches(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphreplay.offload, "_SMALLEST", 1)
    native, _ = train(precision, replay=False, width=8)
    replayed, _ = train(precision, replay=True, width=8)
    require_all_equal(native, replayed)


# What ends the allocation into a pool is called: torch 2.6, and later.
ENDS = ["_cuda_endAllocateCurrentStreamToPool", "_cuda_endAllocateToPool"]


@pytest.fixture(params=ENDS)
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a torch that has one of the two names; none of it needs a GPU."""
    calls: list[str] = []
    for name in ENDS:
        monkeypatch.delattr(torch._C, name, raising=False)
    for name, short in {
        "_cuda_beginAllocateCurrentStreamToPool": "begin",
        request.param: "end",
        "_cuda_releasePool": "release",
    }.items():
        monkeypatch.setattr(torch._C, name, lambda *_, short=short: calls.append(short), raising=False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 2))
    monkeypatch.setattr(graphreplay.capture, "_finish_generator_capture", lambda _: calls.append("generator"))
    monkeypatch.setattr(graphreplay.capture, "_abandoned", [])
    return calls


def recorder(holds_memory: bool) -> Recorder:
    made = Recorder.__new__(Recorder)
    made.device, made._pool, made._holds_memory = torch.device("cuda", 0), (0, 1), holds_memory
    return made


def test_warm_up_that_fails_leaves_the_pool(called: list[str]) -> None:
    """Else all that the stream allocates would lie in memory that replays write over."""
    with contextlib.suppress(KeyError), recorder(True).in_pool():
        assert called == ["begin"]
        raise KeyError
    assert called == ["begin", "end", "release"]


def test_first_warm_up_stays_out_of_the_pool(called: list[str]) -> None:
    with recorder(False).in_pool():
        pass
    assert called == []


def test_failed_capture_leaves_the_pool(called: list[str]) -> None:
    broken = recorder(True)
    broken._abandon(object())
    assert called == ["end", "release", "generator"]
    assert broken._pool == (0, 2)
    assert not broken.holds_memory
