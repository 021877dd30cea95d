"""Fits with replay end bit for bit where native ones do, and the recordings really were used."""

from __future__ import annotations

import pytest
import torch

from graphreplay import Label
from graphreplay.capability import has_bfloat16
from graphreplay.reference import ReferenceModule, reference_batches
from graphreplay.testing import Fit, Scenario, prove

PRECISIONS = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
LAYOUTS = {"layouts1": [(2, 64, 64)], "layouts3": [(2, 64, 64), (2, 96, 64), (3, 64, 64)]}
STEPS = 12

pytestmark = pytest.mark.gpu


def prove_reference(precision: str, accumulate: int, shapes: list[tuple[int, int, int]], **trainer: object) -> Fit:
    scenario = Scenario(
        module=ReferenceModule,
        batches=lambda: reference_batches(shapes, STEPS),
        validation=lambda: reference_batches(shapes[:1], 2, seed=2),
        network="network",
        trainer={
            "accelerator": "cuda",
            "devices": 1,
            "max_epochs": 1,
            "precision": PRECISIONS[precision],
            "accumulate_grad_batches": accumulate,
            **trainer,
        },
    )
    return prove(scenario)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_fit_matches_native(precision: str, accumulate: int, layouts: str) -> None:
    """Each layout is watched once natively, recorded once, and replayed in every later step."""
    shapes = LAYOUTS[layouts]
    proof = prove_reference(precision, accumulate, shapes)
    if precision == "bf16" and not has_bfloat16(torch.device("cuda", 0)):
        assert {one.label for one in proof.report.retirements} == {Label.BF16}
        return
    assert proof.report.retirements == ()
    assert proof.report.recorded == len(shapes)
    assert proof.report.replayed == STEPS - len(shapes)
    assert proof.report.native_by_cause["observed"] == len(shapes)
    assert sum(layout.recomputed for layout in proof.report.layouts) == 0


def test_validation_inside_a_window_runs_native() -> None:
    """Validation every third batch of a window of two uses evaluation mode, and replay goes on behind it."""
    proof = prove_reference("fp16", 2, LAYOUTS["layouts3"], val_check_interval=3)
    assert proof.report.retirements == ()
    assert proof.report.replayed == STEPS - 3
    assert proof.report.native["evaluation"] == 2 * (STEPS // 3)
