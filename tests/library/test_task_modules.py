"""The LightningModules of the four tasks: options, fits, average, schedule, checkpoints, and replay on a CPU."""

from __future__ import annotations

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.plugins import MixedPrecision
from task_cases import MODULES, Poisoned, scene_batch
from torch.utils.data import DataLoader

from graphreplay import Label, OptionError, RetiredError
from graphreplay.tasks.batch import Batch, Predictions
from graphreplay.tasks.errors import NonFiniteError
from graphreplay.tasks.modules import DetectionModule, PoseModule, SegmentationModule
from graphreplay.tasks.modules.average import average_of, follow
from graphreplay.tasks.modules.options import RATES
from graphreplay.tasks.modules.schedule import LAST, warmup_cosine
from graphreplay.tasks.networks import DetectionNetwork
from graphreplay.tasks.scenes import SceneData
from graphreplay.testing import compare
from graphreplay.testing.endstate import collect

SMALL = {"width": 2, "warmup_steps": 2}
ALL = pytest.mark.parametrize("task", MODULES)


def data(task: str, scenes: int = 6) -> SceneData:
    return SceneData(task, batch_size=2, sizes=((64, 64), (64, 96)), train_scenes=scenes, val_scenes=3)


def fitted(
    module: LightningModule, task: str, scenes: int = 6, ckpt_path: Path | None = None, **trainer: Any
) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "max_epochs": 1, "accelerator": "cpu"}
    trained = Trainer(**{**quiet, **trainer})
    trained.fit(module, data(task, scenes), ckpt_path=ckpt_path)
    return trained


# Options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"widht": 8}, "unknown option 'widht'; the options are width, optimizer"),
        ({"width": 3}, "width=3 must be even"),
        ({"width": 0}, "width=0 must be a whole number of at least 2"),
        ({"width": True}, "width=True must be a whole number"),
        ({"optimizer": "adam"}, "optimizer='adam' is unknown; use one of musgd, sgd, adamw"),
        ({"lr": -0.1}, "lr=-0.1 must be a finite number of at least 0"),
        ({"lr": float("nan")}, "lr=nan must be a finite number"),
        ({"lr": "fast"}, "lr='fast' must be a finite number"),
        ({"weight_decay": -1}, "weight_decay=-1 must be"),
        ({"warmup_steps": 1.5}, "warmup_steps=1.5 must be a whole number of at least 0"),
        ({"ema_decay": 1.0}, "ema_decay=1.0 must be a finite number of at least 0 and below 1"),
        ({"capture_network": 1}, "capture_network=1 must be True or False"),
        ({"replay": {"strict": True}}, "has no effect without capture_network=True"),
        ({"capture_network": True, "replay": {"stritc": True}}, "unknown option 'stritc'"),
        ({"capture_network": True, "replay": {"layouts": 0}}, "layouts=0 must be a whole number of at least 1"),
        ({"capture_network": True, "replay": [1]}, "must be a dict of ReplayOptions"),
    ],
)
@ALL
def test_wrong_options_are_refused_at_construction(task: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says.replace("[", r"\[")):
        MODULES[task](**options)


def test_captures_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(OptionError, match="leave capture_segment_heads=False"):
        SegmentationModule(capture_network=True, capture_segment_heads=True)
    for task, module in MODULES.items():
        if task != "segmentation":
            with pytest.raises(OptionError, match="which only SegmentationModule has"):
                module(capture_segment_heads=True)


# Fits


@ALL
@pytest.mark.parametrize("optimizer", RATES)
def test_two_batches_move_weights_and_log_loss_and_precision(task: str, optimizer: str) -> None:
    seed_everything(0, verbose=False)
    module = MODULES[task](**SMALL, optimizer=optimizer)
    before = copy.deepcopy(module.network.state_dict())
    trainer = fitted(module, task, scenes=4)
    assert trainer.global_step == 2
    assert {"train/loss", "val/map50", "val/map"} <= set(trainer.callback_metrics)
    assert all(value.isfinite() for value in trainer.callback_metrics.values())
    moved = compare(before, module.network.state_dict())
    assert moved is not None
    # The coarsest level may have had no object, and decay spares biases.
    assert moved.differing > 0.9 * moved.of


@ALL
@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_fit(task: str, precision: str) -> None:
    seed_everything(0, verbose=False)
    trainer = fitted(MODULES[task](**SMALL), task, scenes=2, precision=precision)
    assert trainer.callback_metrics["train/loss"].isfinite()


@ALL
def test_a_fit_is_the_same_each_time(task: str) -> None:
    states = []
    for _ in range(2):
        seed_everything(0, verbose=False)
        module = MODULES[task](**SMALL)
        states.append(collect(fitted(module, task, accumulate_grad_batches=2), module, []).tensors)
    assert compare(*states) is None


def test_a_module_finds_objects_in_images_without_a_trainer() -> None:
    images = scene_batch("detection").images
    module = DetectionModule(**SMALL)
    before = copy.deepcopy(module.state_dict())
    found = module(images)
    assert len(found) == len(images)
    assert all(len(one.scores) == len(one.boxes) == len(one.classes) > 0 for one in found)
    assert all((one.scores.diff() <= 0).all() for one in found)
    assert compare(before, module.state_dict()) is None


# The average of weights


@pytest.mark.filterwarnings("ignore:You are using a custom batch sampler `SizedBatches` for prediction")
@ALL
def test_trainer_predicts_what_the_module_finds(task: str) -> None:
    """In batches of scenes, in bare images, and of a data module; the targets do not count."""
    torch.manual_seed(3)
    module, scenes = MODULES[task](**SMALL), data(task)
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    loaders = [
        scenes.val_dataloader(),
        DataLoader([batch.images for batch in scenes.val_dataloader()], batch_size=None),
    ]
    found = [trainer.predict(module, loader) for loader in loaders]
    found.append(trainer.predict(module, datamodule=scenes))
    expected = [module(batch.images) for batch in scenes.val_dataloader()]
    for predictions in found:
        assert len(predictions) == len(expected)
        for one, other in zip(chain.from_iterable(predictions), chain.from_iterable(expected), strict=True):
            assert [part is None for part in one] == [part is None for part in other]
            assert compare(by_name(one), by_name(other)) is None


def by_name(found: Predictions) -> dict[str, torch.Tensor]:
    return {name: part for name, part in found._asdict().items() if part is not None}


def test_average_follows_by_its_decay_and_copies_counters() -> None:
    network = DetectionNetwork(3, 2)
    average = average_of(network)
    assert not any(weight.requires_grad for weight in average.parameters())
    old = copy.deepcopy(network.state_dict())
    for value in network.state_dict().values():
        value.add_(1)
    follow(average, network, 0.9, updates=10**6)
    for name, value in average.state_dict().items():
        step = 0.1 if value.is_floating_point() else 1
        torch.testing.assert_close(value, old[name] + step)


def test_average_opens_up_to_the_past() -> None:
    """At first it is nearly the network itself."""
    network = DetectionNetwork(3, 2)
    average = average_of(network)
    with torch.no_grad():
        network.trunk.stem[0].weight.add_(1)
    gap = network.trunk.stem[0].weight - average.trunk.stem[0].weight
    follow(average, network, 0.9, updates=1)
    left = network.trunk.stem[0].weight - average.trunk.stem[0].weight
    assert (left / gap).mean().item() == pytest.approx(0.9 * (1 - 2.718281828**-0.01), rel=1e-4)


@ALL
def test_average_moves_once_an_optimizer_step_and_is_what_validation_sees(task: str) -> None:
    module = MODULES[task](**SMALL)
    seen = Seen()
    fitted(module, task, scenes=8, accumulate_grad_batches=2, callbacks=[seen])
    assert seen.moved == [False, True, False, True]
    assert (seen.average_ran, seen.network_ran) == (2, 0)


class Seen(Callback):
    """Whether the average moved, batch by batch, and who runs in validation."""

    def __init__(self) -> None:
        self.moved: list[bool] = []
        self.average_ran = self.network_ran = 0

    def on_train_batch_start(self, _trainer: Trainer, module: Any, *_: Any) -> None:
        self._before = copy.deepcopy(module.average.state_dict())

    def on_train_batch_end(self, _trainer: Trainer, module: Any, *_: Any) -> None:
        self.moved.append(compare(self._before, module.average.state_dict()) is not None)

    def on_validation_start(self, _trainer: Trainer, module: Any) -> None:
        self._hooks = [
            module.average.register_forward_hook(lambda *_: self._count("average_ran")),
            module.network.register_forward_hook(lambda *_: self._count("network_ran")),
        ]

    def on_validation_end(self, *_: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_step_that_the_scaler_skips_moves_the_schedule_but_not_the_average() -> None:
    """The third of four batches overflows, as fp16 does."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    module, seen, rates = Overflowing(**SMALL, lr=0.1), Seen(), Rates()
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    fitted(module, "detection", scenes=8, plugins=[plugin], callbacks=[seen, rates])
    assert scaler.get_scale() == 2.0**3
    assert seen.moved == [True, True, False, True]
    assert module._updates == 3
    share = warmup_cosine(2, 4)
    assert rates.seen == pytest.approx([0.1 * share(step) for step in range(4)])


class Overflowing(DetectionModule):
    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        return super().training_step(batch, index) * (float("inf") if index == 2 else 1)


# The schedule


def test_rate_rises_in_a_line_and_falls_along_half_a_cosine() -> None:
    share = warmup_cosine(4, 104)
    assert [share(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert share(54) == pytest.approx((1 + LAST) / 2)
    assert share(104) == share(1000) == pytest.approx(LAST)
    assert all(share(step) > share(step + 1) for step in range(4, 104))


def test_rate_stays_where_the_fit_has_no_end_or_no_room() -> None:
    assert warmup_cosine(0, float("inf"))(10**6) == 1
    assert warmup_cosine(10, 8)(20) == 1


def test_rate_changes_at_every_optimizer_step_of_a_fit() -> None:
    module = DetectionModule(**SMALL, lr=0.1)
    rates = Rates()
    fitted(module, "detection", scenes=12, accumulate_grad_batches=2, callbacks=[rates])
    share = warmup_cosine(2, 3)
    assert rates.seen == pytest.approx([0.1 * share(step) for step in (0, 0, 1, 1, 2, 2)])


@pytest.mark.parametrize(
    ("plan", "more", "steps"),
    [
        ({0: 2, 2: 4}, {"max_epochs": 3}, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4]),
        ({1: 3}, {"max_epochs": 2}, [0, 1, 2, 3, 4, 4, 4, 5]),
        ({0: 2}, {"max_epochs": 3, "max_steps": 3}, [0, 0, 1, 1, 2, 2]),
        ({0: 2}, {"max_epochs": -1, "max_steps": 3}, [0, 0, 1, 1, 2, 2]),
    ],
)
def test_rate_reaches_its_end_where_accumulation_changes_between_epochs(
    plan: dict[int, int], more: dict[str, int], steps: list[int]
) -> None:
    rates = Rates()
    callbacks = [rates, GradientAccumulationScheduler(plan)]
    trainer = fitted(DetectionModule(**SMALL, lr=0.1), "detection", scenes=8, callbacks=callbacks, **more)
    share = warmup_cosine(2, trainer.global_step)
    assert rates.seen == pytest.approx([0.1 * share(step) for step in steps])


class Rates(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self.seen.append(trainer.optimizers[0].param_groups[0]["lr"])


# Checkpoints


class StopAt(Callback):
    """Saves and stops the fit after a batch, as an interruption would."""

    def __init__(self, batch: int, path: Path) -> None:
        self.batch = batch
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, _module: Any, _outputs: Any, _batch: Any, index: int) -> None:
        if index == self.batch:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@ALL
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
def test_resumed_fit_ends_where_an_unbroken_one_does(task: str, tmp_path: Path) -> None:
    """Broken after an epoch, resumed by another module and trainer: weights, average, optimizer, schedule, metrics."""
    ends = []
    for broken in (False, True):
        seed_everything(0, verbose=False)
        module = MODULES[task](**SMALL)
        if broken:
            path = tmp_path / "part.ckpt"
            fitted(module, task, max_epochs=2, callbacks=[StopAt(2, path)])
            module = MODULES[task](**SMALL)
            trainer = fitted(module, task, max_epochs=2, ckpt_path=path)
        else:
            trainer = fitted(module, task, max_epochs=2)
        assert trainer.global_step == 6
        state = collect(trainer, module, []).tensors
        ends.append({name: value for name, value in state.items() if not name.startswith("random")})
    assert compare(*ends) is None


def test_module_is_made_again_from_its_checkpoint(tmp_path: Path) -> None:
    module = PoseModule(**SMALL, optimizer="adamw")
    fitted(module, "pose").save_checkpoint(tmp_path / "end.ckpt")
    again = PoseModule.load_from_checkpoint(tmp_path / "end.ckpt")
    assert again.options == module.options
    assert compare(module.state_dict(), again.state_dict()) is None


# Replay


@ALL
def test_replay_on_a_cpu_runs_native_and_says_so(task: str) -> None:
    states = []
    for capture in (False, True):
        seed_everything(0, verbose=False)
        module = MODULES[task](**SMALL, capture_network=capture)
        trainer = fitted(module, task)
        state = collect(trainer, module, []).tensors
        states.append({name: value for name, value in state.items() if not name.startswith("callback")})
        report = module.replay_report()
        assert {one.label for one in report.retirements} == ({Label.DEVICE} if capture else set())
        assert report.native_by_cause == ({"device": 3} if capture else {})
    assert compare(*states) is None


def test_head_capture_takes_the_mask_heads_alone() -> None:
    module = SegmentationModule(**SMALL, capture_segment_heads=True)
    fitted(module, "segmentation")
    assert module.replay_report().native_by_cause == {"device": 3}
    assert module._replaying.replay.network is module.network.mask_heads


def test_report_of_the_last_fit_outlives_a_validation() -> None:
    """By the same trainer or another one, while a further fit begins a report of its own."""
    module = DetectionModule(**SMALL, capture_network=True)
    trainer = fitted(module, "detection")
    report = module.replay_report()
    assert report.native_by_cause == {"device": 3}
    for other in (trainer, Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)):
        other.validate(module, data("detection"), verbose=False)
        assert module.replay_report() == report
    fitted(module, "detection", scenes=2)
    assert module.replay_report().native_by_cause == {"device": 1}


def test_strict_replay_on_a_cpu_is_refused() -> None:
    with pytest.raises(RetiredError, match="device"):
        fitted(DetectionModule(**SMALL, capture_network=True, replay={"strict": True}), "detection")


# Values that are not finite


@pytest.mark.parametrize("poisoned", [2, 3])
def test_keypoints_that_are_not_finite_raise_at_the_end_of_their_window(poisoned: int) -> None:
    """Before the optimizer moves anything, and classed by the error itself."""
    module = Poisoned(**SMALL)
    module.poisoned = poisoned
    seen = Seen()
    with pytest.raises(NonFiniteError, match="in the window before step 1") as caught:
        fitted(module, "pose", scenes=12, accumulate_grad_batches=2, callbacks=[seen])
    assert caught.value.failure_class == "non-finite"
    assert isinstance(caught.value, ValueError)
    assert len(seen.moved) == 3
    assert all(weight.isfinite().all() for weight in module.network.parameters())


def test_keypoints_of_a_fit_that_broke_off_are_not_held_against_the_next_one() -> None:
    """It ended inside a window, with a likelihood noted that was never asked for."""
    module = Poisoned(**SMALL)
    with pytest.raises(KeyError):
        fitted(module, "pose", scenes=8, accumulate_grad_batches=4, callbacks=[Broken()])
    module.poisoned = -1
    assert fitted(module, "pose", scenes=4, accumulate_grad_batches=2).global_step == 1


class Broken(Callback):
    def on_train_batch_end(self, _trainer: Trainer, _module: Any, _outputs: Any, _batch: Any, index: int) -> None:
        if index == 2:
            raise KeyError(index)
