"""The states of jobs, cells and attempts, and the only ways between them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from worker.messages import Verdict


class CellState(enum.StrEnum):
    """A cell is queued until a worker claims it, and ended when an attempt decided it."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


class AttemptState(enum.StrEnum):
    """An attempt begins claimed, and an ended one never changes."""

    CLAIMED = "claimed"
    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


class JobState(enum.StrEnum):
    """A job is planning, waiting or running, and then ends as one of four."""

    PLANNING = "planning"
    WAITING = "waiting"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen unless somebody asks."""
        return self in ENDED_JOB_STATES


class DeliveryState(enum.StrEnum):
    """What became of a forge's delivery."""

    STARTED = "started"  # a job
    AGAIN = "again"  # a job that was there runs again
    DUPLICATE = "duplicate"  # the event has its job already
    IGNORED = "ignored"
    REFUSED = "refused"  # its payload is not what the forge's documentation says


ENDED_JOB_STATES = frozenset({JobState.PASSED, JobState.FAILED, JobState.BROKEN, JobState.CANCELLED})


class CredentialKind(enum.StrEnum):
    """What opens a private repository."""

    TOKEN = "token"  # noqa: S105 - the kind, no token
    SSH_KEY = "ssh-key"


class CommitState(enum.StrEnum):
    """What a forge is told of a commit."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the job has ended for this commit."""
        return self not in {CommitState.PENDING, CommitState.RUNNING}


COMMIT_STATES: Mapping[JobState, CommitState] = {
    JobState.PLANNING: CommitState.PENDING,
    JobState.WAITING: CommitState.PENDING,
    JobState.RUNNING: CommitState.RUNNING,
    JobState.PASSED: CommitState.SUCCESS,
    JobState.FAILED: CommitState.FAILURE,
    JobState.BROKEN: CommitState.ERROR,
    JobState.CANCELLED: CommitState.CANCELLED,
}


class SendState(enum.StrEnum):
    """What became of something that is sent to another server."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GAVE_UP = "gave-up"


CELL_TRANSITIONS: Mapping[CellState, frozenset[CellState]] = {
    CellState.QUEUED: frozenset({CellState.CLAIMED, CellState.ENDED}),
    CellState.CLAIMED: frozenset({CellState.PREPARING, CellState.RUNNING, CellState.QUEUED, CellState.ENDED}),
    CellState.PREPARING: frozenset({CellState.RUNNING, CellState.QUEUED, CellState.ENDED}),
    CellState.RUNNING: frozenset({CellState.QUEUED, CellState.ENDED}),
    CellState.ENDED: frozenset({CellState.QUEUED}),  # only when somebody runs it again
}

ATTEMPT_TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.CLAIMED: frozenset({AttemptState.PREPARING, AttemptState.RUNNING, AttemptState.ENDED}),
    AttemptState.PREPARING: frozenset({AttemptState.RUNNING, AttemptState.ENDED}),
    AttemptState.RUNNING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset(),
}


class Origin(enum.StrEnum):
    """Where results come from: a worker of ours ran them, or somebody sent a report of a run elsewhere."""

    RUN = "run"
    IMPORTED = "imported"


class IllegalTransition(Exception):
    """A state was asked to change in a way that does not exist: a fault of ours, never of the caller's input."""


def move_cell(current: CellState, new: CellState) -> CellState:
    """``new``, if a cell may go there.

    Raises:
        IllegalTransition: it may not.
    """
    if new not in CELL_TRANSITIONS[current]:
        raise IllegalTransition(f"a cell cannot go from {current} to {new}")
    return new


def move_attempt(current: AttemptState, new: AttemptState) -> AttemptState:
    """``new``, if an attempt may go there.

    Raises:
        IllegalTransition: it may not.
    """
    if new not in ATTEMPT_TRANSITIONS[current]:
        raise IllegalTransition(f"an attempt cannot go from {current} to {new}")
    return new


UNDECIDING = frozenset({Verdict.LOST, Verdict.INFRASTRUCTURE})
"""Verdicts that say something of the machine and nothing of the tree: they never decide a cell by themselves."""

TEST_FAILURES = frozenset({Verdict.FAILED, Verdict.CRASHED, Verdict.TIMED_OUT})
"""Verdicts that say that a test failed."""


def deciding(verdicts: Iterable[tuple[int, Verdict]]) -> int | None:
    """The key of the attempt that decides a cell, of its ended attempts as (key, verdict) from earliest to latest.

    It is the latest that is neither lost nor infrastructure; where there is none, no attempt decides.
    """
    decided = None
    for key, verdict in verdicts:
        if verdict not in UNDECIDING:
            decided = key
    return decided


def job_state(cells: Iterable[tuple[CellState, Verdict | None]], *, cancelled: bool) -> JobState:
    """A planned job's state, from its cells' states and deciding verdicts and whether somebody cancelled it."""
    cells = list(cells)
    if all(state is CellState.ENDED for state, _ in cells):
        verdicts = {verdict for _, verdict in cells}
        if cancelled and Verdict.CANCELLED in verdicts:
            return JobState.CANCELLED
        if verdicts & TEST_FAILURES:
            return JobState.FAILED
        return JobState.PASSED if verdicts == {Verdict.PASSED} else JobState.BROKEN
    if all(state is CellState.QUEUED for state, _ in cells):
        return JobState.WAITING
    return JobState.RUNNING
