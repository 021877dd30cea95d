"""How pages say things: what is hidden becomes visible, what is long becomes short, what counts comes first."""

from __future__ import annotations

import datetime

import pytest

from service.jobs.schemas import CellOutput
from service.pages import log, matrix, progress, text
from service.states import CellState
from worker.messages import Verdict

NOW = datetime.datetime(2026, 10, 23, 12, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\0b", "a␀b"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f\x9b", "␡\\x9b"),
        ("safe\u202efdp", "safe\\u202efdp"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("half \ud83d", "half \\ud83d"),
        ("line\n\tnext é 漢 🙂", "line\n\tnext é 漢 🙂"),
    ],
)
def test_what_cannot_be_seen_is_shown_as_a_symbol(given: str, shown: str) -> None:
    """Controls, reordering marks and lone surrogates never reach a page as they are; other text does."""
    assert text.visible(given) == shown


def test_long_node_ids_keep_both_ends() -> None:
    """A node id is shortened in the middle, since its parameters stand at its end."""
    node_id = "tests/ptl/test_pose.py::" + "x" * 500 + "[bf16-2-three]"
    short = text.middle(node_id, 60)
    assert len(short) == 60
    assert short.startswith("tests/ptl/test_pose")
    assert short.endswith("x[bf16-2-three]")
    assert text.middle("short", 60) == "short"


def test_megabytes_are_clipped_in_the_middle() -> None:
    """A text of a megabyte costs a page no more than the limit, and says how much is left out."""
    clipped = text.clip("a" * 600_000 + "b" * 400_000, 1000)
    assert len(clipped) < 1100
    assert "999,000 characters left out" in clipped


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (0.0804, "80 ms"),
        (0.0125, "13 ms"),
        (4.24, "4.2 s"),
        (4.25, "4.3 s"),
        (12.5, "13 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (730, "12 min 10 s"),
        (7500, "2 h 5 min"),
        (-1, "0 ms"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    """Durations read as the log writes them; a clock that stepped back gives no negative one."""
    assert text.span(seconds) == shown


def test_moments() -> None:
    """A moment is told by its distance on the day, and by its date later."""
    told = [text.ago(NOW - datetime.timedelta(seconds=seconds), NOW) for seconds in (5, 300, 7200, 100_000)]
    assert told == ["just now", "5 min ago", "2 h ago", "2026-10-22"]


def test_logs_lose_colours_and_progress_bars() -> None:
    """A log shows what a terminal would: no escape sequences, and of a progress bar its last state."""
    raw = "\x1b[32mPASSED\x1b[0m one\r\n 10%|#  |\r 60%|## |\r100%|###|\n\x1b]0;title\x07\x1b[1A\x1b[2Kdone\n"
    assert log.window(raw).lines == ("PASSED one", "100%|###|", "done")


def test_a_log_of_35000_lines_is_windowed() -> None:
    """The page gets the last lines only, and is told how many there are before them."""
    shown = log.window("".join(f"line {index}\n" for index in range(35_000)), lines=400)
    assert len(shown.lines) == 400
    assert shown.lines[-1] == "line 34999"
    assert shown.left_out == 34_600


def test_one_endless_line_is_cut() -> None:
    """A line of ten megabytes doesn't reach the page."""
    shown = log.window("x" * 10_000_000 + "\nend\n")
    assert sum(map(len, shown.lines)) < 10_000
    assert shown.lines[-1] == "end"


def test_one_failure_in_a_thousand_is_seen() -> None:
    """Even one case gets a visible stretch of the bar, and the whole never exceeds it."""
    parts = progress.bar({"failed": 1, "passed": 9_999}, 10_000)
    assert [part.tone for part in parts] == ["bad", "good"]
    assert parts[0].width > 1.9
    assert sum(part.width for part in parts) <= 100.01


def test_a_bar_stays_empty_where_cases_are_not_reported() -> None:
    """Nine of 27 cases fill a third."""
    assert [part.width for part in progress.bar({"passed": 9}, 27)] == [pytest.approx(33.33)]
    assert progress.bar({}, 27) == ()
    assert progress.bar({}, 0) == ()


@pytest.mark.parametrize(
    ("counts", "collected", "shown"),
    [
        ({}, 0, ""),
        ({}, 3, "0 of 3 cases"),
        ({"passed": 1}, 3, "1 of 3 cases"),
        ({"passed": 2, "failed": 1}, 3, "3 cases"),
        ({"passed": 1, "not-observed": 1}, 1, "1 case"),
        ({"passed": 1, "not-observed": 2}, 3, "1 of 3 cases"),
        ({"not-observed": 1}, 1, "0 of 1 case"),
        ({"not-observed": 1}, 0, ""),
        ({"passed": 2}, 1, "2 cases"),
        ({"passed": 1_000}, 2_000, "1,000 of 2,000 cases"),
    ],
)
def test_what_was_not_observed_is_not_reported(counts: dict[str, int], collected: int, shown: str) -> None:
    """So never more is reported than there was to report."""
    assert progress.reported(counts, collected) == shown


def cell(number: int = 1, **changes: object) -> CellOutput:
    """A cell as the API gives it."""
    plain = {
        "id": number,
        "job": 1,
        "position": number,
        "name": "",
        "tree": "bb3c0b8",
        "runtime": "py3.11-torch2.9.1-cu129-pl2.6.6",
        "runtime_title": "Python 3.11 / torch 2.9.1+cu129",
        "suite": "parity",
        "kind": "cuda",
        "state": "queued",
        "verdict": None,
        "revision": 1,
        "attempt": None,
        "attempts": 0,
        "counts": {},
        "collected": 0,
        "running_case": None,
        "flaky": False,
        "gpu": None,
        "worker": None,
        "detail": "",
        "waiting_reason": None,
        "queued_at": NOW,
        "started_at": None,
        "ended_at": None,
    }
    return CellOutput.model_validate({**plain, **changes})


def test_the_matrix_has_trees_and_runtimes_down_and_suites_across() -> None:
    """Rows keep the job's order; a cell that was left out leaves a gap."""
    old = {"runtime": "py3.13", "runtime_title": "Python 3.13"}
    cells = [cell(1, suite="gate"), cell(2), cell(3, suite="gate", **old), cell(4, tree="3cf592d")]
    arranged = matrix.arrange(cells)
    assert arranged.suites == ("gate", "parity")
    assert [(group.tree, len(group.rows)) for group in arranged.groups] == [("bb3c0b8", 2), ("3cf592d", 1)]
    shown = [[one.id if one else None for one in row.cells] for group in arranged.groups for row in group.rows]
    assert shown == [[1, 2], [3, None], [None, 4]]


def test_lightning_is_named_only_where_it_varies() -> None:
    """Two lightnings on one torch are told apart; one alone is not written."""
    other = cell(2, runtime="py3.11-torch2.9.1-cu129-pl2.5.4")
    both = matrix.arrange([cell(1), other]).groups[0].rows
    assert [row.title.rpartition(" / ")[2] for row in both] == ["lightning 2.6.6", "lightning 2.5.4"]
    assert matrix.arrange([other]).groups[0].rows[0].title == "Python 3.11 / torch 2.9.1+cu129"


def test_a_cell_says_why() -> None:
    """A queued cell says why it waits, another why it didn't pass; a queued one has not begun, whatever ran before."""
    waiting = cell(waiting_reason="no worker is alive", detail="an earlier attempt's", started_at=NOW)
    broken = cell(state=CellState.ENDED, verdict=Verdict.ENVIRONMENT, detail="no torch 2.9.1+cu129")
    assert (progress.word(waiting), progress.reason(waiting)) == ("queued", "no worker is alive")
    assert (progress.word(broken), progress.reason(broken)) == ("environment", "no torch 2.9.1+cu129")
    assert progress.began(waiting) is None


def test_a_span_counts_the_milliseconds_that_a_browser_sees() -> None:
    """A browser cuts each moment to its millisecond before it subtracts, and the first page must say the same."""
    start = datetime.datetime(2026, 1, 2, microsecond=900, tzinfo=datetime.UTC)
    assert text.elapsed(start, start.replace(microsecond=20_000)) == 0.020
    assert text.elapsed(start.replace(microsecond=0), start.replace(microsecond=19_999)) == 0.019
