"""The tasks' cases of benchmarks/replay.py: whole steps of a Lightning fit, and what network and loss take of them.

Batches lie on the device already: data is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from measuring import synchronize

import graphreplay.callback
from graphreplay.tasks.batch import TASKS, Batch
from graphreplay.tasks.parity import MODULES, PRECISIONS
from graphreplay.tasks.scenes import SceneData
from graphreplay.testing.rehearsal import Rehearsal

WAYS = ("native", "graphreplay")
# Batches before the clock starts: one is watched, one recorded, and libraries set themselves up.
_WARM = 6


@dataclass(frozen=True)
class TaskCase:
    """One task to time, with the module's own defaults.

    Attributes:
        task: One of `TASKS`.
        precision: One of `PRECISIONS`.
        count: Images in a batch.
        size: Their height and width in pixels.
    """

    task: str
    precision: str
    count: int
    size: int = 320

    kind = "task"

    @property
    def id(self) -> str:
        """Its name in the results."""
        return f"task-{self.task}-{self.precision}-b{self.count}"


def task_cases(precisions: Sequence[str], counts: Sequence[int], size: int = 320) -> list[TaskCase]:
    """All tasks, of each precision and batch."""
    return [TaskCase(task, one, count, size) for one in precisions for count in counts for task in TASKS]


class Marks:
    """Points of one step, in order, on the GPU's own clock; on a CPU, on the host's."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._points: dict[str, Any] = {}

    def set(self, name: str) -> None:
        """Take the time, at the first call of a name."""
        if name in self._points:
            return
        if not self._cuda:
            self._points[name] = time.perf_counter()
            return
        event = self._points[name] = torch.cuda.Event(enable_timing=True)
        event.record()

    def between(self) -> list[float]:
        """Milliseconds from each point to the next. Call it when the GPU has finished."""
        pairs = pairwise(self._points.values())
        return [one.elapsed_time(next_) if self._cuda else (next_ - one) * 1e3 for one, next_ in pairs]


class Timer(Callback):
    """Times `steps` batches as a whole, then takes `apart` more to pieces."""

    def __init__(self, device: str, steps: int, apart: int) -> None:
        self.step_ms = 0.0
        self.pieces: list[Marks] = []
        self._device = device
        self._whole = range(_WARM, _WARM + steps)
        self._apart = range(_WARM + steps, _WARM + steps + apart)
        self.batches = self._apart.stop

    def on_fit_start(self, _trainer: Trainer, module: Any) -> None:
        # Hooks of the network itself run around a replay.
        module.network.register_forward_pre_hook(lambda *_: self._mark("network"))
        module.network.register_forward_hook(self._after_forward)

    def _mark(self, name: str) -> None:
        if self.pieces:
            self.pieces[-1].set(name)

    def _after_forward(self, _network: object, _inputs: object, maps: Sequence[torch.Tensor]) -> None:
        self._mark("loss")
        if self.pieces:
            # Autograd goes through all that came after the network before it enters the first of its branches.
            for one in maps:
                one.register_hook(lambda _: self._mark("network again"))

    def on_train_batch_start(self, _trainer: Trainer, _module: LightningModule, _batch: Batch, index: int) -> None:
        if index == self._whole.start:
            synchronize(self._device)
            self._began = time.perf_counter()
        if index in self._apart:
            self.pieces.append(Marks(self._device))
            self._mark("begin")

    def on_after_backward(self, *_: Any) -> None:
        self._mark("rest")

    def on_train_batch_end(self, _trainer: Trainer, _module: Any, _outputs: Any, _batch: Batch, index: int) -> None:
        self._mark("end")
        if index == self._whole[-1]:
            synchronize(self._device)
            self.step_ms = (time.perf_counter() - self._began) * 1e3 / len(self._whole)

    def parts(self) -> dict[str, float]:
        """Milliseconds of the network, the loss and what is left: medians over the steps that were taken to pieces."""
        synchronize(self._device)
        found = []
        for marks in self.pieces:
            before, forward, loss, backward, after = marks.between()
            found.append((forward + backward, loss, before + after))
        network, loss, rest = (statistics.median(column) for column in zip(*found, strict=True))
        return {"network": network, "loss": loss, "rest": rest}


def fitted(case: TaskCase, way: str, device: str, steps: int, apart: int) -> tuple[Timer, dict[str, Any]]:
    """One fit; its times and its replay's report."""
    seed_everything(0, verbose=False)
    timer = Timer(device, steps, apart)
    batches = batches_of(case, device)
    trainer = Trainer(
        accelerator=device, devices=1, max_epochs=1, precision=PRECISIONS[case.precision], callbacks=[timer],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, benchmark=False,
    )  # fmt: skip
    module: Any = MODULES[case.task](capture_network=way == "graphreplay")
    trainer.fit(module, Rounds(batches, timer.batches))
    return timer, module.replay_report().as_dict()


class Rounds:
    """Batches that come round and round, as a loader."""

    def __init__(self, batches: Sequence[Batch], count: int) -> None:
        self._batches, self._count = batches, count

    def __iter__(self) -> Any:
        return (self._batches[index % len(self._batches)] for index in range(self._count))

    def __len__(self) -> int:
        return self._count


def batches_of(case: TaskCase, device: str) -> list[Batch]:
    """Two batches of drawn scenes, on the device."""
    sizes = ((case.size, case.size),)
    data = SceneData(case.task, case.count, sizes, train_scenes=2 * case.count, pin_memory=False)
    return [Batch(*(part.to(device) for part in batch)) for batch in data.train_dataloader()]


def measure_task(case: TaskCase, device: str, quick: bool) -> dict[str, Any]:
    """Milliseconds of a whole step and of its parts, in each way: medians over fits in which both have their turn."""
    rounds, steps, apart = (2, 8, 4) if quick else (3, 30, 10)
    with _rehearsed(device):
        fits: dict[str, list[tuple[Timer, dict[str, Any]]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, found in fits.items():
                found.append(fitted(case, way, device, steps, apart))
    return {
        "step_ms": {way: statistics.median(timer.step_ms for timer, _ in found) for way, found in fits.items()},
        "parts_ms": {way: _medians([timer.parts() for timer, _ in found]) for way, found in fits.items()},
        "report": fits["graphreplay"][-1][1],
    }


def _medians(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in parts) for name in parts[0]}


def _rehearsed(device: str) -> Any:
    """Without a GPU, all of a replay but the graphs, to try the plumbing."""
    kind: Callable[..., Any] = graphreplay.callback.NetworkReplay if device == "cuda" else Rehearsal
    return mock.patch.object(graphreplay.callback, "NetworkReplay", kind)
