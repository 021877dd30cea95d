"""What became of a case, decided from two observations alone."""

from __future__ import annotations

import pytest

from service.compare.comparison import Change, Seen, Side, compare, counts, note, stopped
from service.compare.cursor import Cursor
from worker.messages import FailureClass, Outcome, Verdict

P, F, E, S, N = Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.SKIPPED, Outcome.NOT_OBSERVED
X = Outcome.XFAILED
BITS, ASSERT = FailureClass.BITWISE_MISMATCH, FailureClass.ASSERTION


def side(*cases: Outcome | Seen | None, verdict: Verdict = Verdict.FAILED, **more: object) -> Side:
    """A side whose cases are named by their places; ``None`` leaves one out."""
    seen = {
        (str(place), 0): case if isinstance(case, Seen) else Seen(place, case)
        for place, case in enumerate(cases)
        if case is not None
    }
    return Side(verdict=verdict, cases=seen, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (P, P, Change.STILL_PASSING),
        (P, X, Change.EXPECTED_TO_FAIL),
        (Outcome.XPASSED, X, Change.EXPECTED_TO_FAIL),
        (X, X, Change.STILL_PASSING),
        (X, P, Change.FIXED),
        (X, F, Change.BROKEN),
        (F, X, Change.EXPECTED_TO_FAIL),
        (P, F, Change.BROKEN),
        (P, Outcome.CRASHED, Change.BROKEN),
        (P, Outcome.TIMED_OUT, Change.BROKEN),
        (F, P, Change.FIXED),
        (F, F, Change.FAILING_THE_SAME),
        (F, E, Change.FAILING_DIFFERENTLY),
        (P, S, Change.NOT_RUN),
        (N, F, Change.NOT_RUN),
        (P, None, Change.VANISHED),
        (None, F, Change.NEW),
    ],
)
def test_each_pair_of_outcomes_has_one_change(before: Outcome | None, after: Outcome | None, change: Change) -> None:
    (found,) = compare(side(before), side(after))
    assert found.change is change


def test_another_failure_class_is_failing_differently() -> None:
    (found,) = compare(side(Seen(1, F, BITS)), side(Seen(2, F, ASSERT)))
    assert found.change is Change.FAILING_DIFFERENTLY


def test_another_comparison_key_makes_every_common_case_not_comparable() -> None:
    """Bits of another GPU say nothing; what only one tree has is still told."""
    base, head = side(P, F, None, key="H200 / 1"), side(P, P, F, key="B200 / 1")
    assert counts(compare(base, head)) == {Change.NEW: 1, Change.NOT_COMPARABLE: 2}
    assert note(base, head) == "not comparable: base was observed with H200 / 1, head with B200 / 1"


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (P, S, True),
        (P, N, True),
        (P, None, True),
        (Outcome.XPASSED, S, True),
        (P, X, True),
        (X, X, False),
        (X, S, True),
        (P, P, False),
        (P, F, False),
        (F, S, False),
        (S, None, False),
        (None, S, False),
    ],
)
def test_what_passed_and_neither_passes_nor_breaks_now_is_lost(
    before: Outcome | None, after: Outcome | None, lost: bool
) -> None:
    """It is not broken, and nobody has seen it pass; so too where head left it out of its selection."""
    (found,) = compare(side(before), side(after))
    assert found.lost is lost
    assert compare(side(P), side(whole=False))[0].lost
    flaky = {("0", 0)}
    assert compare(side(P), side(F, flaky=flaky))[0].lost
    assert not compare(side(P), side(P, flaky=flaky))[0].lost
    assert note(side(P), side(S), 1) == "passed in base, not seen to pass in head: 1"


@pytest.mark.parametrize("verdict", [Verdict.CRASHED, Verdict.TIMED_OUT])
def test_a_tree_that_crashed_tells_what_it_has_where_all_it_collected_is_known(verdict: Verdict) -> None:
    """One crash does not make another tree's new case unknowable; where rows are missing the note says that it is."""
    crash = Outcome.CRASHED if verdict is Verdict.CRASHED else Outcome.TIMED_OUT
    known, cut = (side(P, crash, verdict=verdict, collected=number) for number in (2, 3))
    later = side(P, P, F)
    assert counts(compare(known, later)) == {Change.FIXED: 1, Change.NEW: 1, Change.STILL_PASSING: 1}
    assert counts(compare(later, known))[Change.VANISHED] == 1
    assert note(known, later) == ""
    assert counts(compare(cut, later))[Change.NOT_RUN] == 1
    word = verdict.replace("-", " ")
    assert note(cut, later) == f"base did not tell all its cases ({word}): what it lacks may be new"
    assert note(cut, cut).startswith(f"head did not tell all its cases ({word}): what it lacks may have vanished; base")


def test_a_flaky_case_is_neither_broken_nor_fixed() -> None:
    found = compare(side(P, P), side(F, F, flaky={("0", 0)}))
    assert counts(found) == {Change.BROKEN: 1, Change.FLAKY: 1}


def test_what_a_selection_leaves_out_has_not_vanished() -> None:
    """Only an attempt at the whole suite, with every collected case reported, can say that a tree lacks a case."""
    assert counts(compare(side(P, P), side(P, whole=False))) == {Change.NOT_RUN: 1, Change.STILL_PASSING: 1}
    assert counts(compare(side(P, P), side(P, verdict=Verdict.INTERRUPTED)))[Change.NOT_RUN] == 1


def test_a_suite_that_stops_has_broken_as_a_whole() -> None:
    """Where it cannot even be collected, no case says so; a runtime that cannot be built says nothing of the tree."""
    whole = side(P)
    assert stopped(whole, side(verdict=Verdict.INTERRUPTED))
    assert not stopped(whole, side(verdict=Verdict.ENVIRONMENT))
    assert not stopped(side(verdict=Verdict.CRASHED), side(verdict=Verdict.CRASHED))
    assert note(whole, side(verdict=Verdict.ENVIRONMENT)) == "head was not run: environment"
    assert note(Side(), whole) == "base has no deciding attempt"


def test_cases_stand_as_head_stored_them_and_lost_ones_last() -> None:
    base = Side(Verdict.FAILED, cases={("a", 0): Seen(1, P), ("gone", 0): Seen(2, P), ("b", 0): Seen(3, P)})
    head = Side(Verdict.FAILED, cases={("b", 0): Seen(10, P), ("a", 0): Seen(11, P)})
    assert [case.key[0] for case in compare(base, head)] == ["b", "a", "gone"]


def test_a_cursor_survives_its_own_text() -> None:
    cursor = Cursor("py3.11-torch2.9.1-cu129-pl2.6.6", "parity.v2", 1, 42)
    assert Cursor.parse(cursor.query.removeprefix("after=")) == cursor
    with pytest.raises(ValueError, match="take `next` of the page before"):
        Cursor.parse("py3.11/x/2/1")
