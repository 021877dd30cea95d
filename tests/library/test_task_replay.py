"""The four networks are such as can be replayed, whole or by their mask heads, through all that a fit brings; and on a
GPU, a step never waits for it.

Fits run on the CPU in rehearsal, where graphs are Python that runs again, and on the GPU.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from task_cases import MODULES, TASKS, Poisoned, emptied, scene_batch
from torch import nn

import graphreplay.callback
from graphreplay import Label, Report
from graphreplay.capability import has_bfloat16
from graphreplay.tasks.batch import Batch
from graphreplay.tasks.errors import NonFiniteError
from graphreplay.tasks.parity import LowScale, deterministic
from graphreplay.testing import Fit, Scenario, fit, prove, require_equal
from graphreplay.testing.rehearsal import Again, Rehearsal

ALL = pytest.mark.parametrize("task", TASKS)
WINDOWS = pytest.mark.parametrize("window", [1, 2])
LAYOUTS = ((64, 96), (96, 64))
SMALL = {"width": 4, "warmup_steps": 2, "ema_decay": 0.9}


def trained(task: str, network: nn.Module, window: int, path: str | None) -> Report | None:
    """Eight batches in windows, of two layouts in turn, some objects in each; what is at `path` is replayed."""
    replay = None if path is None else Rehearsal(network.get_submodule(path), strict=True).attach()
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    for step in range(8):
        batch = scene_batch(task, 2, *LAYOUTS[step % 2], seed=step)
        (TASKS[task].loss(network(batch.images), batch).total / window).backward()
        if (step + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
    if replay is None:
        return None
    replay.close()
    return replay.report()


@ALL
@WINDOWS
def test_networks_replay_to_the_bit(task: str, window: int) -> None:
    """Rehearsed on the CPU: all of the replay but the graphs."""
    require_replayed(*native_and_replayed(task, window, ""))


@WINDOWS
def test_mask_heads_replay_to_the_bit_from_their_features(window: int) -> None:
    """The gradients of features, which five parts of the network add to, are summed in the same order."""
    require_replayed(*native_and_replayed("segmentation", window, "mask_heads"))


def native_and_replayed(task: str, window: int, path: str) -> tuple[nn.Module, nn.Module, Report]:
    torch.manual_seed(0)
    native = TASKS[task].network()
    replayed = copy.deepcopy(native)
    trained(task, native, window, None)
    report = trained(task, replayed, window, path)
    assert report is not None
    return native, replayed, report


def require_replayed(native: nn.Module, replayed: nn.Module, report: Report) -> None:
    require_equal(native.state_dict(), replayed.state_dict())
    assert (report.recorded, report.replayed) == (2, 6)
    assert report.native_by_cause == {"observed": 2}
    assert sum(layout.recomputed for layout in report.layouts) == 0


# Fits


@pytest.fixture(params=["rehearsed", pytest.param("cuda", marks=pytest.mark.gpu)])
def accelerator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cuda":
        return "cuda"
    monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)
    return "cpu"


def captured(
    task: str,
    batches: Callable[[], Sequence[Batch]],
    accelerator: str,
    flag: str = "capture_network",
    module: Callable[..., LightningModule] | None = None,
    validation: Callable[[], Sequence[Batch]] | None = None,
    **trainer: Any,
) -> Scenario:
    """A fit that the module's own flag replays."""
    make = module or MODULES[task]
    if trainer.get("precision") == "16-mixed":
        trainer["callbacks"] = [LowScale, *trainer.get("callbacks", [])]
    return Scenario(
        module=lambda: make(**SMALL),
        replayed=lambda: make(**SMALL, **{flag: True}),
        batches=batches,
        validation=validation,
        trainer={"accelerator": accelerator, "devices": 1, "max_epochs": 1, **trainer},
    )


def require_counts(proof: Fit, recorded: int, replayed: int, precision: str = "32-true") -> None:
    if precision == "bf16-mixed" and not has_bfloat16(torch.device("cuda", 0)):
        assert {one.label for one in proof.report.retirements} == {Label.BF16}
        return
    assert proof.report.retirements == ()
    assert (proof.report.recorded, proof.report.replayed) == (recorded, replayed)
    assert proof.report.native_by_cause == {"observed": recorded}


def in_turn(task: str, count: int) -> Callable[[], list[Batch]]:
    """Batches of two images, in two layouts."""
    return lambda: [scene_batch(task, 2, *LAYOUTS[step % 2], seed=step) for step in range(count)]


def alike(task: str, count: int) -> Callable[[], list[Batch]]:
    """Batches of two images, in one layout."""
    return lambda: [scene_batch(task, 2, 64, 64, seed=step) for step in range(count)]


@ALL
@WINDOWS
def test_fit_over_empty_and_partial_batches_matches(task: str, window: int, accelerator: str) -> None:
    """Two batches in seven hold no object, one is half a one, and validation of the average comes inside windows."""

    def batches() -> list[Batch]:
        full = alike(task, 6)()
        return [full[0], emptied(full[1]), *full[2:4], emptied(full[4]), full[5], scene_batch(task, 1, 64, 64, seed=6)]

    def validation() -> list[Batch]:
        return [scene_batch(task, 2, 64, 64, seed=9), emptied(scene_batch(task, 1, 64, 96, seed=9))]

    scenario = captured(
        task, batches, accelerator, validation=validation,
        accumulate_grad_batches=window, max_epochs=2, val_check_interval=3,
    )  # fmt: skip
    with deterministic():
        proof = prove(scenario)
    require_counts(proof, 2, 12)
    assert "metric.val/map" in proof.state.tensors


class Raised(Callback):
    """Accumulates over two batches from the fourth on."""

    def on_train_batch_start(self, trainer: Trainer, _module: LightningModule, _batch: Batch, index: int) -> None:
        trainer.accumulate_grad_batches = 1 + (index >= 3)


@ALL
def test_accumulation_raised_behind_the_recording_keeps_it(task: str, accelerator: str) -> None:
    with deterministic():
        proof = prove(captured(task, alike(task, 9), accelerator, callbacks=[Raised]))
    require_counts(proof, 1, 8)


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_accumulation_raised_in_half_precision_keeps_the_recording(task: str, precision: str) -> None:
    with deterministic():
        proof = prove(captured(task, alike(task, 9), "cuda", precision=precision, callbacks=[Raised]))
    require_counts(proof, 1, 8, precision)


@WINDOWS
def test_fit_with_captured_mask_heads_matches(window: int, accelerator: str) -> None:
    batches = in_turn("segmentation", 8)
    with deterministic():
        proof = prove(
            captured("segmentation", batches, accelerator, "capture_segment_heads", accumulate_grad_batches=window)
        )
    require_counts(proof, 2, 6)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_fit_with_captured_mask_heads_matches_in_half_precision(precision: str, window: int) -> None:
    scenario = captured(
        "segmentation", in_turn("segmentation", 8), "cuda", "capture_segment_heads",
        precision=precision, accumulate_grad_batches=window,
    )  # fmt: skip
    with deterministic():
        proof = prove(scenario)
    require_counts(proof, 2, 6, precision)


class Launches(Callback):
    """How many graphs each batch launched."""

    def __init__(self, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        self._count = 0
        graph: Any = torch.cuda.CUDAGraph if accelerator == "cuda" else Again
        native = graph.replay

        def replay(graph: object) -> None:
            self._count += 1
            native(graph)

        monkeypatch.setattr(graph, "replay", replay)

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(self._count - sum(self.seen))


@ALL
@WINDOWS
def test_a_replayed_batch_launches_two_graphs(
    task: str, window: int, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One forward and one backward, whatever the window; none while a layout is watched."""
    launches = Launches(accelerator, monkeypatch)
    trainer = {"accumulate_grad_batches": window, "callbacks": [lambda: launches]}
    report = fit(captured(task, in_turn(task, 7), accelerator, **trainer), replay=True).report
    assert launches.seen == [0, 0, 2, 2, 2, 2, 2]
    assert report.replayed == 5


@WINDOWS
def test_captured_mask_heads_launch_two_graphs(window: int, accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches(accelerator, monkeypatch)
    trainer = {"accumulate_grad_batches": window, "callbacks": [lambda: launches]}
    batches = alike("segmentation", 5)
    fit(captured("segmentation", batches, accelerator, "capture_segment_heads", **trainer), replay=True)
    assert launches.seen == [0, 2, 2, 2, 2]


@pytest.mark.parametrize("poisoned", [2, 3])
def test_keypoints_that_are_not_finite_end_a_replayed_fit_with_their_window(poisoned: int, accelerator: str) -> None:
    def module(**options: Any) -> Poisoned:
        made = Poisoned(**options)
        made.poisoned = poisoned
        return made

    scenario = captured("pose", alike("pose", 6), accelerator, module=module, accumulate_grad_batches=2)
    with pytest.raises(NonFiniteError, match="in the window before step 1"):
        fit(scenario, replay=True)


# Waiting for the GPU


@pytest.fixture
def strictly() -> Iterator[None]:
    """Torch refuses what has no fixed order."""
    with deterministic():
        yield


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
def test_a_step_never_waits_for_the_gpu(
    task: str, dtype: torch.dtype, strictly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, loss and backward, in an image size seen for the first time too, by torch's own watch of both."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    network = TASKS[task].network().cuda()
    batches = [Batch(*(part.cuda() for part in scene_batch(task, 3, *size))) for size in ((64, 64), (160, 96))]
    for batch, mode in zip(batches, ("default", "error"), strict=True):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                total = TASKS[task].loss(network(batch.images), batch).total
            total.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(weight.grad.isfinite().all() for weight in network.parameters())


class Waits(Callback):
    """What each batch waited for, from its step's beginning to its end, as torch's own watch tells."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._region = warnings.catch_warnings(record=True)
        self._caught = self._region.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def on_train_batch_end(self, *_: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
        self._region.__exit__(None, None, None)
        self.seen.append([f"{one.filename}:{one.lineno}" for one in self._caught if "synchroniz" in str(one.message)])


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("replay", [True, False], ids=["replayed", "native"])
def test_a_window_waits_at_its_end_alone(task: str, precision: str, replay: bool) -> None:
    """Once for fp16's GradScaler, once for pose's likelihood: what the page on CUDA performance names.

    The first batches are left out: what is made once, like a metric, is copied to the device then.
    """
    waits = Waits()
    trainer = {"precision": precision, "accumulate_grad_batches": 2, "callbacks": [lambda: waits]}
    fit(captured(task, alike(task, 8), "cuda", **trainer), replay=replay)
    named = (task == "pose") + (precision == "16-mixed")
    for index, seen in enumerate(waits.seen[4:], start=4):
        assert len(seen) == (named if index % 2 == 1 else 0), (index, seen)
