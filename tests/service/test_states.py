"""States: the only ways between them, which attempt decides, and what a job's cells make of the job."""

from __future__ import annotations

import itertools

import pytest

from service.states import (
    ATTEMPT_TRANSITIONS,
    CELL_TRANSITIONS,
    AttemptState,
    CellState,
    IllegalTransition,
    JobState,
    deciding,
    job_state,
    move_attempt,
    move_cell,
)
from worker.messages import Verdict

V, C, J = Verdict, CellState, JobState

CELL_WAYS = {
    "queued": {"claimed", "ended"},
    "claimed": {"preparing", "running", "queued", "ended"},
    "preparing": {"running", "queued", "ended"},
    "running": {"queued", "ended"},
    "ended": {"queued"},
}
ATTEMPT_WAYS = {
    "claimed": {"preparing", "running", "ended"},
    "preparing": {"running", "ended"},
    "running": {"ended"},
    "ended": set(),
}


@pytest.mark.parametrize(("current", "new"), list(itertools.product(CellState, CellState)))
def test_a_cell_goes_only_the_ways_there_are(current: CellState, new: CellState) -> None:
    """Every pair of states is either a way or refused; nothing leads back but to the queue."""
    if new in CELL_WAYS[current]:
        assert move_cell(current, new) is new
    else:
        with pytest.raises(IllegalTransition, match=f"from {current} to {new}"):
            move_cell(current, new)


@pytest.mark.parametrize(("current", "new"), list(itertools.product(AttemptState, AttemptState)))
def test_an_attempt_goes_only_forward_and_an_ended_one_nowhere(current: AttemptState, new: AttemptState) -> None:
    """Every pair of states is either a way forward or refused."""
    if new in ATTEMPT_WAYS[current]:
        assert move_attempt(current, new) is new
    else:
        with pytest.raises(IllegalTransition, match=f"from {current} to {new}"):
            move_attempt(current, new)


def test_every_state_has_its_ways() -> None:
    """No state was forgotten in the tables of transitions."""
    assert set(CELL_TRANSITIONS) == set(CellState)
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)


@pytest.mark.parametrize(
    ("verdicts", "decider"),
    [
        ([], None),
        ([V.LOST], None),
        ([V.LOST, V.INFRASTRUCTURE], None),
        ([V.PASSED], 0),
        ([V.FAILED, V.PASSED], 1),
        ([V.PASSED, V.FAILED], 1),
        ([V.FAILED, V.LOST], 0),
        ([V.FAILED, V.INFRASTRUCTURE, V.LOST], 0),
        ([V.LOST, V.ENVIRONMENT], 1),
        ([V.PASSED, V.CANCELLED], 1),
    ],
)
def test_the_latest_attempt_that_speaks_of_the_tree_decides(verdicts: list[Verdict], decider: int | None) -> None:
    """Lost and infrastructure never decide, and never take the decision from an earlier attempt."""
    assert deciding(enumerate(verdicts)) == decider


@pytest.mark.parametrize(
    ("cells", "cancelled", "state"),
    [
        ([(C.QUEUED, None)], False, J.WAITING),
        ([(C.QUEUED, None), (C.ENDED, V.PASSED)], False, J.RUNNING),
        ([(C.CLAIMED, None), (C.QUEUED, None)], False, J.RUNNING),
        ([(C.PREPARING, None)], False, J.RUNNING),
        ([(C.RUNNING, None)], True, J.RUNNING),
        ([(C.ENDED, V.PASSED)], False, J.PASSED),
        ([(C.ENDED, V.PASSED)], True, J.PASSED),  # the cancel came too late
        ([(C.ENDED, V.PASSED), (C.ENDED, V.CANCELLED)], True, J.CANCELLED),
        ([(C.ENDED, V.FAILED), (C.ENDED, V.CANCELLED)], True, J.CANCELLED),
        ([(C.ENDED, V.CANCELLED)], False, J.BROKEN),
        ([(C.ENDED, V.FAILED), (C.ENDED, V.ENVIRONMENT)], False, J.FAILED),
        ([(C.ENDED, V.CRASHED)], False, J.FAILED),
        ([(C.ENDED, V.TIMED_OUT), (C.ENDED, V.PASSED)], False, J.FAILED),
        *(
            ([(C.ENDED, verdict), (C.ENDED, V.PASSED)], False, J.BROKEN)
            for verdict in (V.INCOMPLETE, V.NO_CASES, V.USAGE_ERROR, V.INTERNAL_ERROR, V.INTERRUPTED, V.LOST,
                            V.ENVIRONMENT, V.INFRASTRUCTURE)
        ),
    ],
)  # fmt: skip
def test_a_jobs_state_follows_from_its_cells(
    cells: list[tuple[CellState, Verdict | None]], cancelled: bool, state: JobState
) -> None:
    """A cancelled cell of a cancelled job goes first, then a failed test, then what could not be run."""
    assert job_state(cells, cancelled=cancelled) is state
    assert job_state(reversed(cells), cancelled=cancelled) is state
