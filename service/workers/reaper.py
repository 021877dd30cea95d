"""Ends attempts whose lease ran out, by the service's clock, and queues their cells again up to a cap."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence

import structlog
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.clock import now
from service.database import Database
from service.dispatch import outbox
from service.jobs import changes
from service.models import Attempt, Cell, Job
from service.settings import Settings
from service.states import AttemptState, CellState, move_attempt, move_cell
from worker.messages import Verdict

log = structlog.get_logger()


def grant_all(session: Session, settings: Settings, moment: datetime.datetime) -> None:
    """Gives every live lease one full period from a moment, no less and no more: a service that was away cannot blame
    workers for its own silence, nor wait for an hour because its clock was set back by one.
    """
    until = moment + datetime.timedelta(seconds=settings.lease_s)
    live = select(Attempt.id).where(Attempt.state != AttemptState.ENDED)
    ids = session.scalars(live.order_by(Attempt.id).with_for_update(of=Attempt)).all()
    session.execute(update(Attempt).where(Attempt.id.in_(ids)).values(lease_expires_at=until))


def reap(database: Database, settings: Settings, moment: datetime.datetime) -> int:
    """Ends what is overdue at a moment; returns how many attempts that were.

    Each has a transaction of its own: one that ended a cell holds its job, and must not then wait for another cell of
    that job, whose worker may be writing and waiting for the job.
    """
    overdue = (Attempt.state != AttemptState.ENDED, Attempt.lease_expires_at < moment)
    with database.read() as session:
        found = session.scalars(select(Attempt.id).where(*overdue).order_by(Attempt.id)).all()
    reason = "the worker was not heard from before its lease ran out"
    reaped = 0
    for attempt in found:
        cell = _lose_one(database, attempt, overdue, reason, settings)
        if cell is not None:
            log.warning("lease-expired", attempt=attempt, cell=cell)
            reaped += 1
    return reaped


def end_stuck(
    database: Database,
    settings: Settings,
    moment: datetime.datetime,
    skipped_s: Callable[[datetime.datetime], float],
) -> int:
    """Ends attempts whose worker speaks and does not get on: one that claimed and never prepares, prepares for ever, or
    runs beyond its suite's limit. The worker ends such by itself, unless it is broken. ``skipped_s`` says what of
    the time since a moment did not pass, since the clock was set forward. Returns how many were ended.
    """
    live = select(Attempt.id, Attempt.cell_id, Attempt.state, Attempt.claimed_at, Attempt.started_at, Cell.suite_spec)
    live = live.join(Cell, Cell.id == Attempt.cell_id).where(Attempt.state != AttemptState.ENDED).order_by(Attempt.id)
    ended = 0
    with database.read() as session:
        found = session.execute(live).all()
    for attempt_id, cell_id, state, claimed_at, started_at, suite in found:
        since, limit, name = claimed_at, settings.claimed_s, "REPLAYBENCH_CLAIMED_S"
        if state is AttemptState.PREPARING:
            limit, name = settings.preparing_s, "REPLAYBENCH_PREPARING_S"
        elif state is AttemptState.RUNNING:
            since, name = started_at or claimed_at, "the suite's cell_timeout_s plus REPLAYBENCH_OVERTIME_S"
            limit = float(suite.get("cell_timeout_s", 0)) + settings.overtime_s
        if since + datetime.timedelta(seconds=limit + skipped_s(since)) > moment:
            continue
        with database.write() as session:
            cell = session.scalars(select(Cell).where(Cell.id == cell_id).with_for_update(of=Cell)).one()
            attempt = session.scalar(select(Attempt).where(Attempt.id == attempt_id, Attempt.state == state))
            if attempt is None:  # it got on, or ended, while we waited for the lock
                continue
            log.warning("attempt-stuck", attempt=attempt_id, cell=cell.name, state=state, limit_s=limit)
            attempt.detail = f"the worker was heard from, but {state} for longer than {limit:g} s ({name})"
            lose(session, cell, attempt, Verdict.INFRASTRUCTURE, settings)
            ended += 1
    return ended


def running(session: Session, worker_id: int) -> Sequence[int]:
    """The attempts that have not ended of a worker."""
    live = (Attempt.worker_id == worker_id, Attempt.state != AttemptState.ENDED)
    return session.scalars(select(Attempt.id).where(*live).order_by(Attempt.id)).all()


def lose_all(
    database: Database,
    attempts: Iterable[int],
    settings: Settings,
    why: str = "the worker was started again and no longer runs this attempt",
) -> None:
    """Ends what a worker was running, when it is known to be gone: there is no need to wait for its leases.

    Each has a transaction of its own: jobs share what others are told of a commit, and that is locked behind the job.
    """
    for attempt in attempts:
        _lose_one(database, attempt, (Attempt.state != AttemptState.ENDED,), why, settings)


def _lose_one(
    database: Database, attempt_id: int, still: Iterable[ColumnElement[bool]], reason: str, settings: Settings
) -> str | None:
    """Ends an attempt, if what is said of it still holds when its cell is locked. Returns the cell's name."""
    with database.write() as session:
        of_attempt = select(Attempt.cell_id).where(Attempt.id == attempt_id).scalar_subquery()
        cell = session.scalars(select(Cell).where(Cell.id == of_attempt).with_for_update(of=Cell)).one()
        attempt = session.scalar(select(Attempt).where(Attempt.id == attempt_id, *still))
        if attempt is None:  # it was heard from, or ended, while we waited for the lock
            return None
        attempt.detail = reason
        lose(session, cell, attempt, Verdict.LOST, settings)
        return cell.name


def lose(session: Session, cell: Cell, attempt: Attempt, verdict: Verdict, settings: Settings) -> None:
    """Ends an attempt that says nothing of the tree, and queues its cell again unless the cap or a cancel says no."""
    attempt.state = move_attempt(attempt.state, AttemptState.ENDED)
    attempt.verdict, attempt.ended_at, attempt.running_case = verdict, now(), None
    session.flush()
    cancelled = session.scalar(select(Job.cancel_requested_at).where(Job.id == cell.job_id)) is not None
    if cancelled or cell.attempts_since_queued >= settings.claim_cap:
        changes.end_cell(session, cell, Verdict.CANCELLED if cancelled else Verdict.INFRASTRUCTURE)
    else:
        cell.state = move_cell(cell.state, CellState.QUEUED)
        cell.queued_at = now()
        outbox.wake(session, cell.kind)
    changes.settle(session, cell.job_id, [cell])
