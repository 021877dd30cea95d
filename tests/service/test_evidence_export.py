"""An export is proven only if everything that a row says of its attempt's cases follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from service.client.evidence import Export, ExportedAttempt, ExportedCase
from service.results.evidence import comparison_key, digest
from service.results.schemas import TableOutput, TableRow
from service.results.verdict import UNPASSABLE
from service.states import Origin
from worker.messages import Outcome, Verdict

RUNTIME = "py3.12-torch2.11.0-cu130-pl2.6.6"
# What tells of the cell, or of clocks, and cannot be had from the attempt's cases.
NOT_CHECKED = {"cell", "selection", "run", "duration_s", "flaky", "attempts"}


def case(name: str, outcome: Outcome, failure_class: str | None = None, message: str = "") -> ExportedCase:
    return ExportedCase(
        node_id=f"t.py::{name}",
        occurrence=0,
        outcome=outcome,
        failure_class=failure_class,
        duration_s=1.0,
        message=message,
        evidence=None,
    )


FAILED = [
    case("a", Outcome.FAILED, "bitwise-mismatch"),
    case("b", Outcome.PASSED),
    case("c", Outcome.SKIPPED, None, "no GPU "),
]


def exported(
    cases: list[ExportedCase], verdict: Verdict | None, result: str, changes: Mapping[str, Any] | None = None
) -> Export:
    """One row and its attempt; `changes` are of the row."""
    told = [(one.node_id, one.occurrence, one.outcome, one.failure_class) for one in cases]
    seal = digest("tree", RUNTIME, "cuda", told)
    counts = {outcome: sum(one.outcome is outcome for one in cases) for outcome in Outcome}
    row = TableRow(
        cell=1,
        attempt=1,
        tree="bb3c0b8",
        runtime="Python 3.12 / torch 2.11.0+cu130",
        lightning="2.6.6",
        suite="cuda",
        result=result,
        verdict=verdict,
        counts={outcome: number for outcome, number in counts.items() if number},
        failure_classes={"bitwise-mismatch": 1} if cases is FAILED else {},
        skip_reasons={"no GPU": 1} if cases is FAILED else {},
        duration_s=3.0,
        gpu="NVIDIA H200",
        flaky=False,
        attempts=1,
        digest=seal,
    ).model_copy(update=changes)
    attempt = ExportedAttempt(
        id=1,
        cell=f"bb3c0b8/{RUNTIME}/cuda",
        tree="tree",
        runtime=RUNTIME,
        suite="cuda",
        verdict=verdict,
        digest=seal,
        comparison_key=None,
        environment={"gpus": [{"model": "NVIDIA H200"}]},
        cases=cases,
    )
    table = TableOutput(job=1, repository="demo", state="failed", suites=["cuda"], lightnings=["2.6.6"], rows=[row])
    return Export(table=table, attempts=[attempt])


CHANGED = {
    "attempt": 2,
    "tree": "4f756df",
    "runtime": "Python 3.13 / torch 2.11.0+cu130",
    "lightning": "2.5.4",
    "suite": "gate",
    "result": "27 passed",
    "verdict": Verdict.PASSED,
    "counts": {"passed": 27},
    "failure_classes": {},
    "skip_reasons": {},
    "gpu": "NVIDIA B200",
    "digest": "0" * 64,
    "origin": Origin.IMPORTED,
}


def test_what_follows_is_proven() -> None:
    assert exported(FAILED, Verdict.FAILED, "1 failed, 1 passed, 1 skipped").unproven() == []


@pytest.mark.parametrize("field", CHANGED)
def test_a_row_that_says_something_else_is_unproven(field: str) -> None:
    told = exported(FAILED, Verdict.FAILED, "1 failed, 1 passed, 1 skipped", {field: CHANGED[field]})
    assert told.unproven()


def test_every_field_of_a_row_is_checked_or_named_here_as_not() -> None:
    assert set(TableRow.model_fields) == set(CHANGED) | NOT_CHECKED


def test_every_attempt_has_one_row() -> None:
    """A row that is left out, or told twice, changes what the table says of the job."""
    told = exported(FAILED, Verdict.FAILED, "1 failed, 1 passed, 1 skipped")
    for rows in ([], told.table.rows * 2):
        assert told.model_copy(update={"table": told.table.model_copy(update={"rows": rows})}).unproven()


def test_the_comparison_key_is_that_of_the_record() -> None:
    told = exported(FAILED, Verdict.FAILED, "1 failed, 1 passed, 1 skipped")
    for key, proven in ((comparison_key(told.attempts[0].environment or {}), True), ("NVIDIA B200 / none", False)):
        attempts = [told.attempts[0].model_copy(update={"comparison_key": key})]
        assert (told.model_copy(update={"attempts": attempts}).unproven() == []) is proven


@pytest.mark.parametrize(
    ("verdict", "result", "proven"),
    [
        (None, "1 failed, 1 passed, 1 skipped (running)", True),
        (None, "1 failed, 1 passed, 1 skipped", False),
        (Verdict.INCOMPLETE, "1 failed, 1 passed, 1 skipped (incomplete)", True),
        (Verdict.PASSED, "1 failed, 1 passed, 1 skipped (passed)", False),
    ],
)
def test_the_result_is_that_of_counts_and_verdict(verdict: Verdict | None, result: str, proven: bool) -> None:
    """A cell that has not ended says so, or it would read as a whole one."""
    assert (exported(FAILED, verdict, result).unproven() == []) is proven


@pytest.mark.parametrize("outcome", UNPASSABLE)
def test_no_attempt_passes_with_a_case_that_did_not(outcome: Outcome) -> None:
    """Though verdict and result be changed together, at the row and its attempt."""
    cases = [case("a", Outcome.PASSED), case("b", outcome)]
    assert any("did not all pass" in one for one in exported(cases, Verdict.PASSED, "2 passed").unproven())


def test_why_a_cell_could_not_be_run_stands_in_no_case() -> None:
    assert exported([], Verdict.ENVIRONMENT, "environment: no torch 2.9.1+cu129").unproven() == []
    assert exported([], Verdict.ENVIRONMENT, "12 passed").unproven()


def test_where_no_attempt_decides_the_verdict_is_the_cells_own() -> None:
    """A cell that was cancelled after its worker was lost."""
    told = exported([], Verdict.LOST, "cancelled", {"verdict": Verdict.CANCELLED})
    assert told.unproven() == []
