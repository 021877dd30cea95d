"""What users of CUDA graphs have reported elsewhere, held against replay: one test a report, on the GPU.

Those reports that `test_replay_traps.py`, `test_replay.py` and `test_padded_musgd.py` answer are not repeated here.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from replay_cases import Small, batch, both, by_index, gradients, require_all_equal, squares, watched
from torch import nn

from graphreplay import Label, NetworkReplay, Report
from graphreplay.testing import require_equal

pytestmark = pytest.mark.gpu


def noisy(output: torch.Tensor) -> torch.Tensor:
    """A loss that draws from the GPU's random stream itself."""
    return squares(output + 0.1 * torch.randn_like(output))


@pytest.mark.parametrize("loss", [squares, noisy], ids=["dropout", "dropout-and-loss"])
def test_random_stream_is_native_over_interleaved_recordings(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Dropout in two recordings in turn, and what the caller draws between (pytorch#84614, #176752)."""
    traced = both(Small, [batch(2 + seed % 2, seed) for seed in range(12)], window=3, loss=loss)
    assert traced.report.retirements == ()
    assert (traced.report.recorded, traced.report.replayed) == (2, 10)


# Recordings that go, and how many there may be


class SplitSum(nn.Module):
    """A product over so many columns that cuBLAS splits the sum and needs its workspace; two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(3 * 64 * 64, 128, bias=False)
        self.second = nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.wide(x.flatten(1))
        return x, self.second(x.relu())


def canaries() -> list[torch.Tensor]:
    """Fresh memory, some of which was cuBLAS's workspace if that has been freed."""
    torch.cuda.empty_cache()
    return [torch.full((size << 20,), 7, dtype=torch.uint8, device="cuda") for size in (1, 4, 8, 16, 32, 32)]


def require_untouched(held: list[torch.Tensor]) -> None:
    assert all(bool((one == 7).all()) for one in held)


def train_after_retirement(replay: bool) -> tuple[list[dict[str, torch.Tensor]], Report]:
    """Batches of 24 keep changing which outputs they use until they are retired; then come 50 steps of 16."""
    torch.manual_seed(3)
    network = SplitSum().cuda()
    states: list[dict[str, torch.Tensor]] = []
    held: list[torch.Tensor] = []
    with watched(network, replay) as replaying:
        for step in range(24 + 50):
            network.zero_grad()
            odd = step < 24 and step % 2 == 1
            first, second = network(batch(24 if odd else 16, step, 64))
            (squares(first) if odd and step > 5 else squares(first) + squares(second)).backward()
            states.append(gradients(network))
            if step == 23:
                gc.collect()
                held = canaries()
        require_untouched(held)
    return states, replaying.report()


def test_retired_recording_leaves_the_others_whole() -> None:
    """Fifty replays after another was given up are bit for bit native, and write nowhere else (pytorch#193402)."""
    native, _ = train_after_retirement(False)
    replayed, report = train_after_retirement(True)
    require_all_equal(native, replayed)
    assert [one.label for one in report.retirements] == [Label.GRADIENTS]
    assert [layout.recorded for layout in report.layouts] == [1, 1]
    assert report.layouts[0].replayed == 12 + 50 - 1


def step_of(network: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    network.zero_grad()
    first, second = network(batch(16, seed, 64))
    (squares(first) + squares(second)).backward()
    return gradients(network)


def test_closed_replay_leaves_another_network_whole() -> None:
    """Also where both would record on one stream: torch hands out its 32 streams in turn (pytorch#193402)."""
    kept, other = SplitSum().cuda(), SplitSum().cuda()
    with NetworkReplay(kept) as replay:
        for step in range(2):
            step_of(kept, step)
        for _ in range(31):
            torch.cuda.Stream()
        with NetworkReplay(other) as second:
            for step in range(2):
                step_of(other, step)
        assert second.report().replayed == 1
        gc.collect()
        held = canaries()
        replayed = [step_of(kept, 9) for _ in range(50)]
        require_untouched(held)
    assert replay.report().replayed == 51
    require_all_equal([step_of(kept, 9)] * 50, replayed)


def test_layouts_beyond_the_cap_take_no_memory() -> None:
    """Fifty layouts of one size, of which eight are recorded: the others cost nothing (pytorch#188150, #119640)."""
    network = Small().cuda()
    held = []
    with NetworkReplay(network, layouts=8) as replay:
        for height in range(5, 55):
            x = torch.rand(2, 3, height, 2400 // height).cuda()
            for _ in range(3):
                network.zero_grad()
                squares(network(x)).backward()
            torch.cuda.empty_cache()
            held.append(torch.cuda.memory_reserved())
    report = replay.report()
    assert [(one.layout, one.label) for one in report.retirements] == [("*", Label.LAYOUTS)]
    assert (report.recorded, report.replayed, report.native) == (8, 16, {"layouts-cap": 3 * 42})
    assert max(held[8:]) - held[7] <= 8 << 20


# Evaluation


@pytest.mark.parametrize("kind", ["eval", "eval-with-gradients", "training-without-gradients"])
def test_evaluation_between_microbatches_runs_native(kind: str) -> None:
    """Neither replayed nor counted as training, in a window, with its own statistics (Megatron-LM#6992)."""

    def evaluate(step: int, network: nn.Module) -> None:
        if step % 3 == 0:
            return
        network.train(kind == "training-without-gradients")
        with torch.set_grad_enabled(kind == "eval-with-gradients"):
            network(batch(2, 50 + step))
        network.train()

    traced = both(Small, [batch(2, seed) for seed in range(9)], window=2, before_step=evaluate)
    assert traced.report.native == {"evaluation": 6}
    assert (traced.report.recorded, traced.report.replayed) == (1, 8)
    assert traced.report.retirements == ()


class Remembering(Small):
    """Leaves a result of its forward on itself, as an auxiliary loss would."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        self.aux = x.detach().mean()
        return x


class Drawing(Small):
    """Draws a factor on the host."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * random.uniform(0.5, 2.0)  # noqa: S311  # Nothing here is secret.


def test_random_numbers_of_the_host_are_drawn_natively() -> None:
    """They would be drawn once, at the capture; so the layout retires, and Python's stream goes on as natively."""
    states = []
    for replay in (False, True):
        random.seed(5)
        torch.manual_seed(3)
        network = Drawing().cuda()
        with watched(network, replay) as replaying:
            for seed in range(6):
                squares(network(batch(2, seed))).backward()
        states.append(gradients(network) | {"python": torch.tensor(random.getstate()[1])})
    require_equal(*states)
    assert [one.label for one in replaying.report().retirements] == [Label.RANDOM]


def test_result_left_on_the_module_is_right() -> None:
    """It retires the layout, and every forward's own value is there (pytorch#114844)."""
    seen: list[list[torch.Tensor]] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        seen[-1].append(networks[-1].aux.clone())
        return squares(output)

    networks: list[nn.Module] = []

    def make() -> nn.Module:
        seen.append([])
        networks.append(Remembering())
        return networks[-1]

    traced = both(make, [batch(2, seed) for seed in range(4)], loss=loss)
    require_equal(by_index(seen[0]), by_index(seen[2]))
    assert [one.label for one in traced.report.retirements] == [Label.STATE]
    assert "aux" in traced.report.retirements[0].reason


# Other threads


class Rendezvous(Small):
    """While its forward is captured, it waits until another thread has pinned memory."""

    def __init__(self, pinned: Callable[[], None]) -> None:
        super().__init__()
        self.pinned = pinned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if torch.cuda.is_current_stream_capturing():
            self.pinned()
        return x


class Pinner:
    """A thread that allocates fresh pinned memory on demand, as a DataLoader's pin-memory thread does."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.blocks: list[torch.Tensor] = []
        self._wanted, self._done = threading.Event(), threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._wanted.wait(60) and not self._ended:
            self._wanted.clear()
            try:
                # Of a size that torch's cache of pinned memory does not hold, so that the driver is asked.
                self.blocks.append(torch.empty((5 << 20) + len(self.blocks), dtype=torch.uint8).pin_memory())
            except RuntimeError as error:
                self.errors.append(error)
            self._done.set()

    def pin(self) -> None:
        self._done.clear()
        self._wanted.set()
        assert self._done.wait(30)

    def stop(self) -> None:
        self._ended = True
        self._wanted.set()
        self._thread.join(30)


@pytest.fixture
def pinner() -> Iterator[Pinner]:
    one = Pinner()
    one.pin()
    yield one
    one.stop()


def test_memory_pinned_during_a_capture(pinner: Pinner) -> None:
    """Another thread's cudaHostAlloc in the very middle of a capture disturbs neither (LibreYOLO#681)."""
    network = Rendezvous(pinner.pin).cuda()
    with NetworkReplay(network) as replay:
        for seed in range(4):
            squares(network(batch(2, seed))).backward()
    assert pinner.errors == []
    assert len(pinner.blocks) == 2
    assert replay.report().retirements == ()
    assert (replay.report().recorded, replay.report().replayed) == (1, 3)


# The whole library's counters


def test_a_model_without_recordings_says_so() -> None:
    """The counters tell a replay that does nothing from one that works (LibreYOLO#716)."""
    network = Small().cuda()
    with NetworkReplay(network, sightings=2) as replay:
        squares(network(batch(2, 0))).backward()
        squares(network(batch(2, 1))).backward()
        assert (replay.report().recorded, replay.report().replayed) == (0, 0)
        assert replay.report().native_by_cause == {"observed": 2}
        squares(network(batch(2, 2))).backward()
    assert (replay.report().recorded, replay.report().replayed) == (1, 1)


def test_failed_recording_of_one_layout_between_others() -> None:
    """After a failed capture two older recordings still replay, and a later layout records (pytorch#190308)."""

    class Asking(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            if len(x) == 4 and torch.cuda.is_current_stream_capturing():
                x = x + x.detach().sum().item()
            return x

    order = [2, 3, 2, 3, 4, 2, 3, 4, 5, 5, 2, 3, 5, 4, 2]
    traced = both(Asking, [batch(count, seed) for seed, count in enumerate(order)], window=2)
    assert [one.label for one in traced.report.retirements] == [Label.CAPTURE]
    counts = {layout.layout[:1]: (layout.recorded, layout.replayed) for layout in traced.report.layouts}
    assert counts == {"2": (1, 4), "3": (1, 3), "4": (0, 0), "5": (1, 2)}
