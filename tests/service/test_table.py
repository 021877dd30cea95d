"""Tables: the words of a result, the columns that stand, and texts that stay texts in Markdown and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from service.results import table
from service.results.schemas import TableOutput, TableRow
from service.states import CellState
from worker.messages import Verdict

V = Verdict


@pytest.mark.parametrize(
    ("counts", "verdict", "detail", "text"),
    [
        ({"passed": 9, "failed": 18}, V.FAILED, "", "18 failed, 9 passed"),
        ({"passed": 27}, V.PASSED, "", "27 passed"),
        ({"skipped": 2, "passed": 1, "error": 1}, V.FAILED, "", "1 error, 1 passed, 2 skipped"),
        ({"crashed": 1, "not-observed": 2}, V.CRASHED, "", "1 crashed, 2 not observed"),
        ({}, V.CRASHED, "signal 11", "crashed: signal 11"),
        ({"timed-out": 1, "passed": 1}, V.TIMED_OUT, "", "1 timed out, 1 passed"),
        ({"passed": 1}, V.TIMED_OUT, "", "1 passed (timed out)"),
        ({"passed": 1}, V.INCOMPLETE, "", "1 passed (incomplete)"),
        ({"passed": 1}, None, "", "1 passed"),
        ({}, None, "", ""),
        ({}, V.ENVIRONMENT, "no torch 2.9.1+cu129\nmore", "environment: no torch 2.9.1+cu129"),
        ({}, V.ENVIRONMENT, "\n  \n", "environment"),
        ({}, V.NO_CASES, "", "no cases"),
        ({}, V.INFRASTRUCTURE, "x" * 301, "infrastructure: " + "x" * 299 + "…"),
        ({"passed": 0}, V.USAGE_ERROR, "", "usage error"),
    ],
)  # fmt: skip
def test_a_result_reads_like_the_engineering_logs(
    counts: dict[str, int], verdict: Verdict | None, detail: str, text: str
) -> None:
    """What is wrong comes first; the verdict is added where the counts do not say it."""
    assert table.result(counts, verdict, detail) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.04, "0.0 s"), (4.21, "4.2 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (730, "12 min 10 s"),
     (3599.7, "1 h 0 min"), (7260, "2 h 1 min")],
)  # fmt: skip
def test_a_duration(seconds: float | None, text: str) -> None:
    """Seconds with a tenth, minutes with seconds, hours with minutes."""
    assert table.duration(seconds) == text


def row(**values: Any) -> TableRow:
    """A row with these values."""
    plain: dict[str, Any] = {
        "cell": 1, "attempt": 1, "tree": "bb3c0b8", "runtime": "Python 3.11", "lightning": None, "suite": "unit",
        "result": "1 passed", "verdict": V.PASSED, "counts": {"passed": 1}, "failure_classes": {}, "skip_reasons": {},
        "duration_s": 1.0, "gpu": None, "flaky": False, "attempts": 1, "digest": "d",
    }  # fmt: skip
    return TableRow(**{**plain, **values})


def made(*rows: TableRow) -> TableOutput:
    """A table of these rows."""
    return TableOutput(
        job=1, repository="demo", state="passed", rows=list(rows),
        suites=table.varying([row.suite for row in rows]), lightnings=table.varying([row.lightning for row in rows]),
    )  # fmt: skip


def test_columns_stand_only_where_they_vary() -> None:
    """Suite and lightning where there are several, GPU and skip reasons where there are any."""
    assert [heading for heading, _ in table.columns(made(row(lightning="2.6")))] == [
        "Tree", "Runtime", "Result", "Duration",
    ]  # fmt: skip
    full = made(
        row(lightning="2.6", gpu="NVIDIA H200"), row(lightning="2.5.4", suite="cuda", skip_reasons={"no": 2, "x": 1})
    )
    assert table.markdown(full) == (
        "| Tree | Runtime | Lightning | Suite | Result | Duration | GPU | Skipped because |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| bb3c0b8 | Python 3.11 | 2.6 | unit | 1 passed | 1.0 s | NVIDIA H200 |   |\n"
        "| bb3c0b8 | Python 3.11 | 2.5.4 | cuda | 1 passed | 1.0 s |   | 2 x no; 1 x x |\n"
    )


@pytest.mark.parametrize("state", [state for state in CellState if state is not CellState.ENDED])
def test_counts_of_a_cell_that_has_not_ended_say_so(state: CellState) -> None:
    """They must not be quoted as what it ended with; without any, the state is all there is to say."""
    assert table.result_so_far({"passed": 3}, state) == f"3 passed ({state})"
    assert table.result_so_far({}, state) == str(state)


def test_flaky_and_waiting_are_said_in_the_result() -> None:
    """A row without a result waits; a flaky one says so behind its counts."""
    text = table.markdown(made(row(flaky=True), row(result="", suite="b")))
    assert "| 1 passed (flaky) |" in text
    assert "| waiting |" in text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("one\ntwo\r\n| three", r"one two \| three"),
        ("<img src=x onerror=y>", r"\<img src=x onerror=y\>"),
        ("[here](javascript:x)", r"\[here\](javascript:x)"),
        ("`x` *y* ~z~", r"\`x\` \*y\* \~z\~"),
        ("need test_a_b", "need test_a_b"),
    ],
)
def test_a_text_of_tested_code_stays_one_text_in_markdown(reason: str, text: str) -> None:
    """It can open no column, no row, no link and no markup."""
    line = table.markdown(made(row(skip_reasons={reason: 1}))).splitlines()[-1]
    assert line.endswith(f" | 1 x {text} |")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_is_a_formula_in_a_spreadsheet(start: str) -> None:
    """A text that begins like one gets an apostrophe, and every value survives the way through a CSV reader."""
    gpu = f'{start}cmd|"/c calc",x'
    text = table.text_csv(made(row(gpu=gpu, duration_s=-1.5)))
    (found,) = csv.DictReader(io.StringIO(text, newline=""))
    assert found["gpu"] == f"'{gpu}"
    assert (found["duration_s"], found["passed"], found["failed"], found["lightning"]) == ("-1.5", "1", "0", "")
    assert text.count("\r\n") >= 2
