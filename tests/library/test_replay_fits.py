"""Lightning fits with everything that a fit has, over the small network: replayed ones end where native ones do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fit_cases import OPTIMIZERS, PRECISIONS, SHAPES, Averaging, SmallModule, image_batches, small_scenario
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch.utils.data import DataLoader

from graphreplay import Label, ReplayCallback, Report
from graphreplay.capability import has_bfloat16
from graphreplay.testing import EndState, Fit, fit, prove
from graphreplay.testing.endstate import collect

pytestmark = pytest.mark.gpu

ONE = SHAPES[:1]


def require_replayed(proof: Fit, forwards: int, layouts: int, precision: str = "fp32") -> None:
    """Each layout is watched once, recorded once and replayed ever after; nothing is retired or recomputed."""
    report = proof.report
    if precision == "bf16" and not has_bfloat16(torch.device("cuda", 0)):
        assert {one.label for one in report.retirements} == {Label.BF16}
        return
    assert report.retirements == ()
    assert (report.recorded, report.replayed) == (layouts, forwards - layouts)
    assert sum(layout.recomputed for layout in report.layouts) == 0
    assert report.native_by_cause["observed"] == layouts


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fit_of_every_optimizer_matches(precision: str, optimizer: str) -> None:
    """With a schedule and an average of every step, clipped gradients, and validation inside windows of two."""
    scenario = small_scenario(
        12,
        precision,
        module=partial(SmallModule, optimizer),
        validation=2,
        accumulate_grad_batches=2,
        val_check_interval=5,
        gradient_clip_val=1.0,
        callbacks=[Averaging],
    )
    proof = prove(scenario)
    require_replayed(proof, 12, len(SHAPES), precision)
    assert proof.report.native["evaluation"] == 2 * 2


@pytest.mark.parametrize(
    ("precision", "optimizer", "window"), [("fp32", "musgd", 1), ("fp16", "adamw", 2), ("bf16", "sgd", 3)]
)
def test_long_fit_matches(precision: str, optimizer: str, window: int) -> None:
    """Two epochs of 100 batches: what drifts by one bit anywhere would have time to grow."""
    module = partial(SmallModule, optimizer)
    scenario = small_scenario(
        100, precision, module=module, max_epochs=2, accumulate_grad_batches=window, callbacks=[Averaging]
    )
    require_replayed(prove(scenario), 200, len(SHAPES), precision)


class Widening(Callback):
    """Accumulates over two batches from the fourth on, in the middle of an epoch, and over three from the eighth."""

    def on_train_batch_start(self, trainer: Trainer, _module: LightningModule, _batch: Any, index: int) -> None:
        trainer.accumulate_grad_batches = 1 + (index >= 3) + (index >= 7)


WINDOWS = {
    "fixed": {"accumulate_grad_batches": 4},
    "changed-inside-an-epoch": {"callbacks": [Widening]},
    "changed-between-epochs": {"callbacks": [lambda: GradientAccumulationScheduler({0: 1, 1: 3, 2: 2})]},
    # 10 batches in windows of three: the epoch's last window is short.
    "short-last-window": {"accumulate_grad_batches": 3},
}


@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zero"])
@pytest.mark.parametrize("windows", WINDOWS)
def test_windows_of_any_length_match(windows: str, set_to_none: bool) -> None:
    """The one recording serves them all, over epochs that end inside a window too."""
    module = partial(SmallModule, set_to_none=set_to_none)
    proof = prove(small_scenario(10, shapes=ONE, module=module, max_epochs=3, **WINDOWS[windows]))
    require_replayed(proof, 30, 1)


def test_schedule_of_every_step_is_followed() -> None:
    """A learning rate is not baked into a recording (pytorch#106802): a fit at a fixed rate ends elsewhere."""

    class Fixed(SmallModule):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return OPTIMIZERS["sgd"](self.network)

    proof = prove(small_scenario(12, shapes=ONE))
    require_replayed(proof, 12, 1)
    assert proof.state.difference(fit(small_scenario(12, shapes=ONE, module=Fixed), replay=True).state) is not None


def test_average_taken_inside_a_window_is_recorded_anew() -> None:
    """The weights become their average, at new addresses, in the middle of a fit (vllm#48941)."""
    take = partial(Averaging, take_at=7)
    proof = prove(small_scenario(16, accumulate_grad_batches=2, shapes=SHAPES[:2], callbacks=[take]))
    assert proof.report.retirements == ()
    assert [layout.recorded for layout in proof.report.layouts] == [2, 2]
    assert (proof.report.replayed, proof.report.native_by_cause["observed"]) == (14, 2)


def test_infinite_loss_inside_a_window_skips_the_step() -> None:
    """The scaler's scale and growth tracker end where native's do, at half of what they are without it."""
    states = []
    for at in (None, 3):
        module = partial(SmallModule, infinite_at=at)
        proof = prove(small_scenario(12, "fp16", ONE, module, accumulate_grad_batches=2))
        require_replayed(proof, 12, 1)
        states.append(proof.state.tensors)
    assert states[1]["scaler.scale"] == states[0]["scaler.scale"] / 2
    assert states[1]["scaler._growth_tracker"] < states[0]["scaler._growth_tracker"]


# Checkpoints


def resumed(folder: Path, replay: bool) -> tuple[EndState, list[Report]]:
    """A fit that ends after its 10th batch, inside an epoch, and another that goes on from its checkpoint."""
    folder.mkdir()
    reports = []
    for part, batches in enumerate([10, 24]):
        seed_everything(part, verbose=False)
        replaying = [ReplayCallback("network")] if replay else []
        trainer = Trainer(
            accelerator="cuda",
            devices=1,
            precision="16-mixed",
            accumulate_grad_batches=2,
            max_steps=batches // 2,
            callbacks=[Averaging(), *replaying],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        module = SmallModule("adamw")
        loader = DataLoader(image_batches(16, SHAPES[:2]), batch_size=None)
        trainer.fit(module, loader, ckpt_path=folder / "part.ckpt" if part else None)
        trainer.save_checkpoint(folder / "part.ckpt")
        reports += [callback.report() for callback in replaying]
    return collect(trainer, module, []), reports


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_resumed_fit_matches(tmp_path: Path) -> None:
    """Saved in the middle of an epoch and taken up by another process's trainer: nothing of replay is in between."""
    native, _ = resumed(tmp_path / "native", False)
    again, _ = resumed(tmp_path / "again", False)
    assert native.difference(again) is None
    replayed, (first, second) = resumed(tmp_path / "replayed", True)
    assert native.difference(replayed) is None
    assert any(name.startswith("callback.Averaging.means") for name in native.tensors)
    assert (first.recorded, first.replayed, first.retirements) == (2, 8, ())
    assert (second.recorded, second.replayed, second.retirements) == (2, 12, ())


# Loaders with processes of their own


def growing_batches(count: int) -> Iterator[list[int]]:
    """Indices in batches of two, later of three: a layout that comes while the loader's worker runs ahead."""
    first = 0
    for step in range(count):
        size = 2 + step // 8
        yield list(range(first, first + size))
        first += size


class Indexed(torch.utils.data.Dataset):
    """Images of 12 x 12 from their own numbers."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(index))

    def __len__(self) -> int:
        return 1000


def pinning_loader() -> DataLoader[torch.Tensor]:
    # Forked, since a spawned one imports torch anew, which takes longer than the fit. They touch no GPU.
    return DataLoader(
        Indexed(),
        batch_sampler=list(growing_batches(16)),
        num_workers=1,
        pin_memory=True,
        multiprocessing_context=multiprocessing.get_context("fork"),
    )


def test_fit_beside_a_worker_that_pins_memory_matches() -> None:
    """Recordings made in the middle of an epoch, while a worker and the pin-memory thread are busy (LibreYOLO#681)."""
    scenario = small_scenario(16, "fp16", accumulate_grad_batches=2)
    loaded = scenario.__class__(scenario.module, pinning_loader, trainer=scenario.trainer)
    native, replayed = fit(loaded, replay=False), fit(loaded, replay=True)
    assert native.state.difference(replayed.state) is None
    require_replayed(replayed, 16, 2)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_batches_that_are_skipped_match() -> None:
    """A training step that calls the network and then returns no loss gives its turn up."""

    class Skipping(SmallModule):
        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor | None:
            loss = super().training_step(batch, index)
            return None if index % 5 == 3 else loss

    proof = prove(small_scenario(12, shapes=ONE, module=Skipping))
    assert proof.report.retirements == ()
    assert (proof.report.recorded, proof.report.replayed) == (1, 11)
