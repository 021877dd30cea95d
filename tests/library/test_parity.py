"""The parity scenario on the GPU: each fit of a task, replayed, ends bit for bit where two native ones do.

`layoutN` has N sizes of images.
"""

from __future__ import annotations

import pytest

from graphreplay.tasks.parity import ParityCase, parity_cases, prove_case

pytestmark = [pytest.mark.gpu, pytest.mark.parity]


def cases_of(task: str) -> pytest.MarkDecorator:
    cases = [case for accumulate in (2, 1) for case in parity_cases(accumulate) if case.task == task]
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in cases])


def require_parity(case: ParityCase) -> None:
    """Beyond equal bits and counted replays: there was something to compare."""
    state = prove_case(case).state.tensors
    assert len([name for name in state if name.startswith("module.average.")]) > 100
    assert any(name.startswith("optimizer.0.state.") for name in state), "no optimizer step was taken"
    assert {"metric.train/loss", "metric.val/map50", "metric.val/map"} <= set(state)
    assert ("scaler.scale" in state) == (case.precision == "fp16")


@cases_of("pose")
def test_pose(case: ParityCase) -> None:
    require_parity(case)


@cases_of("oriented")
def test_oriented(case: ParityCase) -> None:
    require_parity(case)


@cases_of("segmentation")
def test_segmentation(case: ParityCase) -> None:
    require_parity(case)


@cases_of("detection")
def test_detection(case: ParityCase) -> None:
    require_parity(case)
