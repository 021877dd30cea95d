"""The parity scenario's cases, and what it refuses; rehearsed on the CPU, where graphs are Python that runs again."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace

import pytest
import torch

import graphreplay.callback
import graphreplay.tasks.parity
from graphreplay import OptionError
from graphreplay.tasks.batch import TASKS
from graphreplay.tasks.parity import (
    LAYOUTS,
    MODULES,
    ParityCase,
    deterministic,
    parity_cases,
    prove_case,
    scenario_of,
)
from graphreplay.testing import NotReplayed, fit
from graphreplay.testing.rehearsal import Rehearsal


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphreplay.callback, "NetworkReplay", Rehearsal)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_cases_are_27_and_detection(accumulate: int) -> None:
    cases = parity_cases(accumulate)
    counts = Counter(case.task for case in cases)
    assert counts == {"pose": 15, "oriented": 9, "segmentation": 3, "detection": 9}
    assert set(counts) == set(TASKS) == set(MODULES) == set(LAYOUTS)
    assert len({str(case) for case in cases}) == 36
    assert f"pose[fp16-{accumulate}-layout3]" in map(str, cases)


@pytest.mark.parametrize("case", [case for case in parity_cases(2) if case.precision == "fp32"], ids=str)
def test_every_layout_of_a_case_comes_three_times(case: ParityCase) -> None:
    """So that each is watched, recorded and replayed again. The last batch of a validation is half a one."""
    scenario = scenario_of(case)
    forms = [batch.images.shape for batch in scenario.batches()]
    counts = Counter(forms)
    assert len(counts) == case.layouts
    assert min(counts.values()) >= 3
    assert len(forms) == case.steps
    windows = set(zip(forms[::2], forms[1::2], strict=True))
    assert windows == {(late, early) for early, late in windows}, "layouts share windows in either order"
    assert scenario.validation is not None
    assert [len(batch.images) for batch in scenario.validation()] == [4, 2]


@pytest.mark.parametrize("task", TASKS)
def test_case_is_proven_in_rehearsal(task: str, rehearsed: None) -> None:
    case = ParityCase(task, "fp32", LAYOUTS[task][0], 2)
    proof = prove_case(case, "cpu")
    assert proof.report.replayed == case.steps - case.layouts
    assert any(name.startswith("optimizer.0.state.") for name in proof.state.tensors)
    assert {"metric.train/loss", "metric.val/map50", "metric.val/map"} <= set(proof.state.tensors)


def test_retirement_fails_a_case() -> None:
    """On a CPU nothing can be replayed, and equal bits alone are no proof."""
    with pytest.raises(NotReplayed, match=r"oriented\[fp32-1-layout1\]: retired as device") as caught:
        prove_case(ParityCase("oriented", "fp32", 1, 1), "cpu")
    assert caught.value.failure_class == "assertion"
    assert caught.value.evidence["report"]["retirements"][0]["label"] == "device"


def test_replays_that_are_missing_fail_a_case(rehearsed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because the layout is watched twice before it is recorded."""
    case = ParityCase("oriented", "fp32", 1, 1)
    late = scenario_of(case, "cpu", capture_network=True, replay={"sightings": 2})
    slow = replace(scenario_of(case, "cpu"), replayed=late.module)
    monkeypatch.setattr(graphreplay.tasks.parity, "scenario_of", lambda *_: slow)
    with pytest.raises(NotReplayed, match="replayed 6 times, not 7; observed 2 times, not 1"):
        prove_case(case, "cpu")


def test_replayed_module_must_bring_its_replay() -> None:
    scenario = scenario_of(ParityCase("oriented", "fp32", 1, 1), "cpu")
    silent = replace(scenario, trainer={"accelerator": "cpu", "max_steps": 1}, replayed=scenario.module)
    with pytest.raises(OptionError, match="without a ReplayCallback"):
        fit(silent, replay=True)


def test_deterministic_mode_is_given_back() -> None:
    def mode() -> tuple[bool, bool, bool]:
        filled = torch.utils.deterministic.fill_uninitialized_memory
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns, filled

    before, within = mode(), []
    with contextlib.suppress(KeyError), deterministic():
        within.append(mode())
        raise KeyError
    assert within == [(True, False, False)]
    assert mode() == before
