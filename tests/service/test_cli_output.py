"""How the command line shows what it was answered."""

from __future__ import annotations

import datetime
import json

import pytest
from rich.console import Console

from service.cli.live import Progress
from service.cli.output import clean, clean_json, line, text
from service.cli.render import counted, result_table, workers_table
from service.jobs.schemas import CellOutput, JobOutput, Snapshot
from service.results import table
from service.results.schemas import TableOutput, TableRow
from service.states import CellState, JobState
from service.workers.schemas import WorkerOutput
from worker.messages import Outcome, Verdict


def test_what_tested_code_says_cannot_steer_the_terminal() -> None:
    assert clean("\x1b[2Jgone\x07 \x9b31m") == "�[2Jgone� �31m"
    assert clean("passed\u202edeliaf\u2066\ufeff") == "passed�deliaf��"
    assert line("one\r\ntwo\tthree") == "one two three"


def test_json_says_the_same_without_a_control_character() -> None:
    said = {"\x9b31m": "\x1b[2J\u202e\x7f\n", "plain": "größer ✓"}
    written = clean_json(json.dumps(said, indent=2, ensure_ascii=False))
    assert json.loads(written) == said
    assert clean(written) == written


def test_brackets_of_a_case_are_no_markup() -> None:
    assert text("test_x[red]").plain == "test_x[red]"


def test_counts_read_like_a_table_with_the_worst_first() -> None:
    counts = {"passed": 9, "skipped": 0, "failed": 18, "timed-out": 1}
    assert counted(counts) == "18 failed, 1 timed out, 9 passed"
    assert counted({}) == ""


def test_counts_are_said_as_the_table_says_them() -> None:
    """Watching and listing, in order and in words, whatever was observed; what is unknown is not counted."""
    counts = {outcome.value: number for number, outcome in enumerate(reversed(Outcome), 1)}
    assert counted(counts) == table.result(counts, None)


@pytest.mark.parametrize(
    ("counts", "collected", "shown"),
    [
        ({"not-observed": 1}, 0, "1 not observed"),
        ({}, 0, ""),
        ({"passed": 1}, 3, "1 of 3"),
        ({"passed": 1, "failed": 1, "not-observed": 1}, 3, "2 of 3, 1 failed, 1 not observed"),
        ({"passed": 1, "not-observed": 1}, 1, "1 of 1, 1 not observed"),
        ({"passed": 2}, 1, "2 of 2"),
    ],
)
def test_a_cell_that_runs_says_what_is_wrong_and_begins_with_no_comma(
    counts: dict[str, int], collected: int, shown: str
) -> None:
    """Also before anything was collected: a case may be known by then."""
    said: list[str] = []
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    cell = CellOutput(
        id=1, job=1, position=0, name="a/py3.11/gate", tree="a", runtime="py3.11", runtime_title="", suite="gate",
        kind="cpu", selection=None, run=1, state=CellState.RUNNING, verdict=None, revision=1, attempt=1, attempts=1,
        counts=counts, collected=collected, running_case=None, flaky=False, gpu=None, worker=None, detail="",
        waiting_reason=None, queued_at=moment, started_at=None, ended_at=None,
    )  # fmt: skip
    job = JobOutput(
        id=1, repository="demo", state=JobState.RUNNING, revision=1, priority=0, label=None, work_package=None,
        requested_by=None, reason=None, trees=["a"], cells={"running": 1}, counts=counts, created_at=moment,
        started_at=None, ended_at=None, url="/jobs/1",
    )  # fmt: skip
    Progress(said.append).take(Snapshot(job=job, cells=[cell]))
    assert said[-1].split(" ", 1)[1] == "  ".join(filter(None, ("a/py3.11/gate running", shown)))


def test_the_table_at_a_terminal_is_that_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The same columns and words, though a later attempt is told too."""
    row = TableRow(
        cell=1, attempt=2, tree="bb3c0b8", runtime="Python 3.11", lightning=None, suite="unit", result="1 passed",
        verdict=Verdict.PASSED, counts={"passed": 1}, failure_classes={}, skip_reasons={}, duration_s=231.0, gpu=None,
        flaky=True, attempts=2, digest=None,
    )  # fmt: skip
    told = TableOutput(job=1, repository="demo", state="passed", suites=["unit"], lightnings=[], rows=[row])
    Console(width=120).print(result_table(told))
    shown = [line.split("   ") for line in capsys.readouterr().out.splitlines() if line.strip(" ─")]
    assert [[one.strip() for one in line if one.strip()] for line in shown] == [
        [heading for heading, _ in table.columns(told)],
        ["bb3c0b8", "Python 3.11", "1 passed (flaky) (attempt 2)", "3 min 51 s"],
    ]


def test_a_drained_card_stands_with_its_reason_in_the_list_of_workers() -> None:
    """Beside one that is fit."""
    devices = [{"model": "NVIDIA H200"}, {"model": "NVIDIA H200", "drained": "Xid 79"}]
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    worker = WorkerOutput(
        id=1, name="h200", host="h", capabilities={"devices": devices}, registered_at=moment, seen_at=moment, live=True
    )
    (cells,) = [list(column.cells) for column in workers_table([worker]).columns if column.header == "Devices"]
    assert str(cells[0]) == "NVIDIA H200, NVIDIA H200 (drained: Xid 79)"
