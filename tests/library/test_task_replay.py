"""The four networks are such as can be replayed, whole or by their mask heads; on a GPU, a step never waits for it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from task_cases import MODULES, TASKS, scene_batch
from torch import nn

from graphreplay import Label, Report
from graphreplay.capability import has_bfloat16
from graphreplay.tasks.batch import Batch
from graphreplay.tasks.scenes import SceneData
from graphreplay.testing import Scenario, prove, require_equal
from graphreplay.testing.rehearsal import Rehearsal

ALL = pytest.mark.parametrize("task", TASKS)
WINDOWS = pytest.mark.parametrize("window", [1, 2])
LAYOUTS = ((64, 96), (96, 64))


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


# On a GPU


@pytest.fixture
def strictly() -> Iterator[None]:
    """Torch refuses what has no fixed order."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
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


@pytest.mark.gpu
@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_fit_with_replayed_mask_heads_matches(precision: str, window: int) -> None:
    data = SceneData("segmentation", batch_size=2, sizes=LAYOUTS, train_scenes=16, val_scenes=4)
    proof = prove(
        Scenario(
            module=lambda: MODULES["segmentation"](width=4, warmup_steps=2),
            batches=lambda: list(data.train_dataloader()),
            validation=lambda: list(data.val_dataloader()),
            trainer={
                "accelerator": "cuda", "devices": 1, "max_epochs": 2, "precision": precision,
                "accumulate_grad_batches": window,
            },
            network="network.mask_heads",
        )
    )  # fmt: skip
    if precision == "bf16-mixed" and not has_bfloat16(torch.device("cuda", 0)):
        assert {one.label for one in proof.report.retirements} == {Label.BF16}
        return
    assert proof.report.retirements == ()
    assert (proof.report.recorded, proof.report.replayed) == (2, 14)
