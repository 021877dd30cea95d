"""The cases of benchmarks/replay.py: what each measures, in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from detector import Batch, Detector, batch_of, loss_of
from measuring import between_events, gpu_busy, in_turn, synchronize, wall
from torch import nn

from graphreplay import NetworkReplay
from graphreplay.testing import compare
from graphreplay.testing.rehearsal import Again, Rehearsal

LAYOUTS = ((320, 320), (352, 320), (384, 384), (288, 320), (256, 256))
_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        kind: `speed`, `bits`, `memory` or `host`.
        precision: `fp32`, `fp16` (with a GradScaler) or `bf16`.
        count: Images in a batch.
        size: Their height and width in pixels.
        ways: In which ways the network is run; native comes first, where it is there.
    """

    kind: str
    precision: str
    count: int
    size: int
    ways: tuple[str, ...]

    @property
    def id(self) -> str:
        """Its name in the results."""
        return f"{self.kind}-{self.precision}-b{self.count}-{self.size}px-{'+'.join(self.ways)}"


@dataclass
class Way:
    """A network of its own, and how it is called.

    Attributes:
        network: Its weights and buffers.
        call: The training forward.
        replay: What reports, for graphreplay.
    """

    network: nn.Module
    call: Callable[..., Any]
    replay: NetworkReplay | None = None


def region(case: Case, device: str) -> contextlib.AbstractContextManager[Any]:
    """The autocast region of a forward. Without its cache, as Lightning 2.6 has it and make_graphed_callables asks."""
    if case.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device, _HALF[case.precision], cache_enabled=False)


def build(name: str, case: Case, device: str) -> Way:
    """The network in one way; the same weights each time."""
    gc.collect()
    torch.manual_seed(0)
    network = Detector().to(device).train()
    if name == "graphreplay":
        kind = NetworkReplay if device == "cuda" else Rehearsal
        replay = kind(network, strict=True).attach()
        return Way(network, network, replay)
    if name == "make_graphed_callables":
        # A sample of its own: it would skip the copy of an input that is the sample itself.
        sample, _ = batch_of(case.count, case.size, case.size, device, 99)
        with region(case, device):
            return Way(network, torch.cuda.make_graphed_callables(network, (sample,)))
    if name == "compile":
        return Way(network, torch.compile(network, mode="reduce-overhead"))
    return Way(network, network)


class Fit:
    """A plain training loop over one way, with fused SGD and a GradScaler, stepping every `window` batches."""

    def __init__(self, way: Way, case: Case, device: str, window: int = 1) -> None:
        self.way, self.case, self.device, self.window = way, case, device, window
        self.optimizer = torch.optim.SGD(
            way.network.parameters(), 0.001, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=device == "cuda"
        )
        self.scaler = torch.amp.GradScaler(device, enabled=case.precision == "fp16", init_scale=2.0**12)
        self.seen = 0

    def step(self, batch: Batch) -> torch.Tensor:
        """One batch; its loss."""
        images, targets = batch
        with region(self.case, self.device):
            loss = loss_of(self.way.call(images), targets) / self.window
        self.scaler.scale(loss).backward()
        self.seen += 1
        if self.seen % self.window == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def state(self) -> dict[str, torch.Tensor]:
        """Weights, buffers, momenta and the scaler's scale, copied."""
        found = {name: value.detach().clone() for name, value in self.way.network.state_dict().items()}
        for index, state in enumerate(self.optimizer.state.values()):
            found[f"momentum.{index}"] = state["momentum_buffer"].detach().clone()
        return found | {"scale": torch.tensor(self.scaler.get_scale())}


class Rounds:
    """Batches that come round and round: two of one layout, so that each call's inputs are another tensor's."""

    def __init__(self, case: Case, device: str) -> None:
        self._batches = [batch_of(case.count, case.size, case.size, device, seed) for seed in range(2)]
        self._next = 0

    def take(self) -> Batch:
        self._next += 1
        return self._batches[self._next % len(self._batches)]


def network_part(way: Way, case: Case, device: str) -> Callable[[], None]:
    """The network's forward and backward alone, given the gradients that the loss would hand back."""
    images, targets = batch_of(case.count, case.size, case.size, device, 0)
    weights = list(way.network.parameters())
    with torch.no_grad(), region(case, device):
        leaves = [output.detach().requires_grad_() for output in way.network(images)]
    with region(case, device):
        loss = loss_of(leaves, targets)
    gradients = torch.autograd.grad(loss, leaves)

    def run() -> None:
        with region(case, device):
            outputs = way.call(images)
        torch.autograd.backward(outputs, gradients)
        for weight in weights:
            weight.grad = None

    return run


# The profiler takes seconds for each, and these are what the tables hold a step against.
PROFILED = ("native", "graphreplay")


def speed(case: Case, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds of a whole step and of the network's part, in each way."""
    fits: dict[str, Fit] = {}
    batches = Rounds(case, device)
    ready: dict[str, float] = {}
    recording = None
    for name in case.ways:
        start = time.perf_counter()
        fit = fits[name] = Fit(build(name, case, device), case, device)
        for turn in range(3):
            before = time.perf_counter()
            fit.step(batches.take())
            synchronize(device)
            if name == "graphreplay" and turn == 1:
                recording = time.perf_counter() - before
        ready[name] = time.perf_counter() - start
        for _ in range(5):
            fit.step(batches.take())
    rounds, steps = (7, 5) if quick else (7, 20)
    whole = {name: partial(wall, partial(_step, fit, batches), device, steps) for name, fit in fits.items()}
    found: dict[str, Any] = {"step_ms": in_turn(whole, rounds), "ready_s": ready, "recording_s": recording}
    if device == "cuda":
        found |= _on_the_gpu(case, fits, batches, rounds, steps)
    return found


def _step(fit: Fit, batches: Rounds) -> None:
    fit.step(batches.take())


def _on_the_gpu(case: Case, fits: dict[str, Fit], batches: Rounds, rounds: int, steps: int) -> dict[str, Any]:
    """The network's part by CUDA events, and GPU-busy times, at the end because the profiler lingers."""
    parts = {name: network_part(fit.way, case, "cuda") for name, fit in fits.items() if name != "compile"}
    for part in parts.values():
        part()
    found: dict[str, Any] = {
        "part_ms": in_turn({name: partial(between_events, part, steps) for name, part in parts.items()}, rounds),
        "part_busy_ms": {name: gpu_busy(parts[name]) for name in PROFILED if name in parts},
        "step_busy_ms": {name: gpu_busy(partial(_step, fits[name], batches)) for name in PROFILED if name in fits},
    }
    replay = fits["graphreplay"].way.replay if "graphreplay" in fits else None
    return found | {"report": replay and replay.report().as_dict()}


def bits(case: Case, device: str, _quick: bool) -> dict[str, Any]:
    """Whether each way's end state is the native one's, at a window of one batch and of two.

    The warm-up of a peer is undone before its fit starts: compared is what it does from then on.
    """
    torch.backends.cudnn.deterministic = True
    native = build("native", case, device)
    initial = {name: value.clone() for name, value in native.network.state_dict().items()}
    expected = {window: end_state(native, initial, case, device, window) for window in (1, 2)}
    differences: dict[str, dict[str, str]] = {}
    report = None
    for name in case.ways:
        way = native if name == "native" else build(name, case, device)
        differences[name] = {
            str(window): difference(way, initial, case, device, window, state) for window, state in expected.items()
        }
        if way.replay is not None:
            report = way.replay.report().as_dict()
    return {"tensors": len(expected[1]), "differences": differences, "report": report}


def difference(
    way: Way, initial: dict[str, torch.Tensor], case: Case, device: str, window: int, native: dict[str, torch.Tensor]
) -> str:
    """How the way's end state differs from the native one: nothing, counts, or the error that ended the fit."""
    try:
        found = compare(native, end_state(way, initial, case, device, window))
    # A peer's failure is a result.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}"
    return "" if found is None else str(found)


def end_state(
    way: Way, initial: dict[str, torch.Tensor], case: Case, device: str, window: int, steps: int = 12
) -> dict[str, torch.Tensor]:
    """Train from the initial weights, and return losses, weights, buffers, momenta and scale."""
    way.network.load_state_dict(initial)
    way.network.zero_grad(set_to_none=True)
    fit, batches = Fit(way, case, device, window), Rounds(case, device)
    losses = [fit.step(batches.take()) for _ in range(steps)]
    return {"losses": torch.stack(losses)} | fit.state()


def memory(case: Case, device: str, _quick: bool) -> dict[str, Any]:
    """The peak of reserved and of allocated memory over five layouts, in MiB, in one way, by a fresh process."""
    (name,) = case.ways
    way = build(name, case, device)
    fit = Fit(way, case, device, window=2)
    for step in range(30):
        height, width = LAYOUTS[step % len(LAYOUTS)]
        fit.step(batch_of(case.count, height, width, device, step))
    torch.cuda.synchronize()
    return {
        "reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        "allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
        "report": way.replay and way.replay.report().as_dict(),
    }


def host(case: Case, device: str, quick: bool) -> dict[str, Any]:
    """Microseconds of the host in a forward and in a backward of the network alone, with graphs that launch nothing.

    So it is what a way adds around its two launches: checks, copies in and out, autograd's own work.
    """
    rounds, calls = (7, 50) if quick else (15, 100)
    images, _ = batch_of(case.count, case.size, case.size, device, 0)
    timed = {name: partial(_host_times, build(name, case, device), case, device, images, calls) for name in case.ways}
    for run in timed.values():
        run()
    with _idle_graphs(device):
        found = {name: [run() for _ in range(rounds)] for name, run in timed.items()}
    return {
        "host_us": {name: statistics.median(forward for forward, _ in times) for name, times in found.items()},
        "host_backward_us": {
            name: statistics.median(backward for _, backward in times) for name, times in found.items()
        },
    }


def _host_times(way: Way, case: Case, device: str, images: torch.Tensor, calls: int) -> tuple[float, float]:
    """The medians over `calls` forwards and backwards."""
    forwards, backwards = [], []
    for _ in range(calls):
        start = time.perf_counter()
        with region(case, device):
            outputs = way.call(images)
        middle = time.perf_counter()
        gradients = [torch.empty_like(output) for output in outputs]
        before = time.perf_counter()
        torch.autograd.backward(outputs, gradients)
        backwards.append(time.perf_counter() - before)
        forwards.append(middle - start)
        way.network.zero_grad(set_to_none=True)
    # Kernels queue up behind the host; were the queue full, the host would wait.
    synchronize(device)
    return statistics.median(forwards) * 1e6, statistics.median(backwards) * 1e6


def _idle_graphs(device: str) -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(torch.cuda.CUDAGraph if device == "cuda" else Again, "replay", _launch_nothing)


def _launch_nothing(_graph: object) -> None: ...


def measure(case: Case, device: str, quick: bool) -> dict[str, Any]:
    """Measure one case."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False
    # Only matters under torch.use_deterministic_algorithms, where it would cost a kernel for each allocation.
    torch.utils.deterministic.fill_uninitialized_memory = False
    return {"speed": speed, "bits": bits, "memory": memory, "host": host}[case.kind](case, device, quick)
