"""The parity scenario: small fits of the four tasks, each run natively twice and replayed once, and compared in bits.

    from graphreplay.tasks.parity import parity_cases, prove_case

    for case in parity_cases(accumulate=2):
        prove_case(case)

Switch on `CUBLAS_WORKSPACE_CONFIG=:4096:8` before the process starts: torch's deterministic mode asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from graphreplay.capability import has_bfloat16
from graphreplay.labels import Label
from graphreplay.report import Report
from graphreplay.tasks.modules import DetectionModule, OrientedModule, PoseModule, SegmentationModule
from graphreplay.tasks.modules.base import TaskModule
from graphreplay.tasks.scenes import SceneData
from graphreplay.testing import Fit, NotReplayed, Scenario, prove

MODULES: Mapping[str, type[TaskModule]] = {
    "pose": PoseModule,
    "oriented": OrientedModule,
    "segmentation": SegmentationModule,
    "detection": DetectionModule,
}
# Lightning's name of each precision.
PRECISIONS: Mapping[str, str] = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
# Heights and widths in pixels, each a layout of its own. `layoutN` has the first N, batch by batch.
SIZES = ((64, 64), (64, 96), (96, 64), (96, 96), (64, 128))
LAYOUTS: Mapping[str, tuple[int, ...]] = {
    "pose": (1, 2, 3, 4, 5),
    "oriented": (1, 2, 3),
    "segmentation": (2,),
    "detection": (1, 2, 3),
}
# Each optimizer has its turn, in every task.
OPTIMIZERS: Mapping[str, str] = {"fp32": "adamw", "fp16": "musgd", "bf16": "sgd"}
BATCH = 4
# Odd, so that validation comes in the middle of a window.
VALIDATION_EVERY = 7


@dataclass(frozen=True)
class ParityCase:
    """One fit of one epoch. Every layout occurs three times at least; validation comes behind the seventh batch.

    Attributes:
        task: One of `graphreplay.tasks.batch.TASKS`.
        precision: One of `PRECISIONS`.
        layouts: How many sizes of images come, there and back again.
        accumulate: Batches of a window, as Lightning's `accumulate_grad_batches`.
    """

    task: str
    precision: str
    layouts: int
    accumulate: int

    @property
    def id(self) -> str:
        """Precision, accumulation and number of layouts, like `fp16-2-layout3`."""
        return f"{self.precision}-{self.accumulate}-layout{self.layouts}"

    @property
    def steps(self) -> int:
        """Training batches: all layouts are watched, then recorded, and six batches more are replayed."""
        return 2 * self.layouts + 6

    def __str__(self) -> str:
        return f"{self.task}[{self.id}]"


def parity_cases(accumulate: int) -> list[ParityCase]:
    """All cases at one accumulation: 15 of pose, 9 of oriented, 3 of segmentation, 9 of detection."""
    return [
        ParityCase(task, precision, layouts, accumulate)
        for task, counts in LAYOUTS.items()
        for precision in PRECISIONS
        for layouts in counts
    ]


def scenario_of(case: ParityCase, accelerator: str = "cuda", **options: Any) -> Scenario:
    """The case's fit. The replayed one differs from the native one by `capture_network=True` alone.

    Args:
        case: The case.
        accelerator: As Lightning's.
        **options: Of the module, in place of the scenario's own; see `FitOptions`.
    """
    fixed = {"width": 8, "warmup_steps": 2, "ema_decay": 0.9, "optimizer": OPTIMIZERS[case.precision], **options}
    # There and back again, so that windows of two hold a layout twice, or two layouts in either order.
    sizes = SIZES[: case.layouts] + SIZES[: case.layouts][::-1]
    # The last batch of a validation is half a one.
    data = SceneData(case.task, BATCH, sizes, train_scenes=BATCH * case.steps, val_scenes=BATCH * 3 // 2, seed=1)
    # Drawn once, and before a fit is seeded: a loader takes a number from torch's generator.
    batches, validation = list(data.train_dataloader()), list(data.val_dataloader())
    return Scenario(
        module=lambda: MODULES[case.task](**fixed),
        replayed=lambda: MODULES[case.task](**fixed, capture_network=True),
        batches=lambda: batches,
        validation=lambda: validation,
        trainer={
            "accelerator": accelerator,
            "devices": 1,
            "max_epochs": 1,
            "precision": PRECISIONS[case.precision],
            "accumulate_grad_batches": case.accumulate,
            "val_check_interval": VALIDATION_EVERY,
            "callbacks": [LowScale] if case.precision == "fp16" else [],
        },
    )


def prove_case(case: ParityCase, accelerator: str = "cuda") -> Fit:
    """Fit the case natively twice and replayed once from one seed, and require equal bits and counted replays.

    Compared are weights, buffers, gradients, optimizer, scaler, schedule, average of weights, losses, metrics and the
    random generators.

    Raises:
        Nondeterministic: Two native fits differ.
        NonFinite: The replayed fit reached a non-finite value that the native one did not.
        BitwiseMismatch: The replayed end state differs from the native one in any bit.
        NotReplayed: A layout was not recorded once and replayed in every later batch, or something was retired other
            than bf16 where the GPU lacks it.
        NonFiniteError: Of pose: the likelihood of the keypoints was not finite.
    """
    with deterministic():
        proof = prove(scenario_of(case, accelerator))
    _require_replayed(case, proof.report)
    return proof


def _require_replayed(case: ParityCase, report: Report) -> None:
    labels = sorted({one.label.value for one in report.retirements})
    if case.precision == "bf16" and torch.cuda.is_available() and not has_bfloat16(torch.device("cuda", 0)):
        if labels != [Label.BF16.value]:
            raise NotReplayed(f"{case}: expected to retire as {Label.BF16.value}, and retired {labels}", report)
        return
    if labels:
        raise NotReplayed(f"{case}: retired as {', '.join(labels)}: {report.retirements[0].reason}", report)
    counts = {
        "recorded": (report.recorded, case.layouts),
        "replayed": (report.replayed, case.steps - case.layouts),
        "observed": (report.native_by_cause.get("observed", 0), case.layouts),
        "recomputed": (sum(layout.recomputed for layout in report.layouts), 0),
    }
    wrong = [f"{name} {seen} times, not {wanted}" for name, (seen, wanted) in counts.items() if seen != wanted]
    if wrong:
        raise NotReplayed(f"{case}: {'; '.join(wrong)}", report)


class LowScale(Callback):
    """Starts the GradScaler at 256 and doubles it every two steps, so that a short fit takes steps and sees it grow."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        plugin: Any = trainer.precision_plugin
        plugin.scaler = torch.amp.GradScaler(pl_module.device.type, init_scale=2.0**8, growth_interval=2)


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch's deterministic mode for the block: native equals native, and what has no fixed order is refused.

    Fresh memory is not filled with NaN meanwhile: a graph would do that at every replay, and a native step does not.
    """
    filling = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = filling.fill_uninitialized_memory
    with warnings.catch_warnings():
        # Newer torch imports its compiler's settings there, which is no business of a fit that asks for no warnings.
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True)
    filling.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        filling.fill_uninitialized_memory = filled
