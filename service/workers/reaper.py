"""Ends attempts whose lease ran out, by the service's clock, and queues their cells again up to a cap."""

from __future__ import annotations

import datetime

import structlog
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.clock import now
from service.jobs import changes
from service.models import Attempt, Cell, Job
from service.settings import Settings
from service.states import AttemptState, move_attempt
from service.workers.service import requeue
from worker.messages import Verdict

log = structlog.get_logger()


def grant_all(session: Session, settings: Settings) -> None:
    """Gives every live lease one full period: a service that was away cannot blame workers for its own silence."""
    until = now() + datetime.timedelta(seconds=settings.lease_s)
    session.execute(
        update(Attempt)
        .where(Attempt.state != AttemptState.ENDED, Attempt.lease_expires_at < until)
        .values(lease_expires_at=until)
    )


def reap(session: Session, settings: Settings) -> int:
    """Ends what is overdue; returns how many attempts that were."""
    overdue = (Attempt.state != AttemptState.ENDED, Attempt.lease_expires_at < now())
    found = session.execute(select(Attempt.id, Attempt.cell_id).where(*overdue).order_by(Attempt.cell_id)).all()
    reaped = 0
    for attempt_id, cell_id in found:
        cell = session.scalars(select(Cell).where(Cell.id == cell_id).with_for_update(of=Cell)).one()
        attempt = session.scalar(
            select(Attempt).where(Attempt.id == attempt_id, *overdue).execution_options(populate_existing=True)
        )
        if attempt is None:  # it was heard from, or ended, while we waited for the lock
            continue
        log.warning("lease-expired", attempt=attempt_id, cell=cell.name)
        attempt.detail = "the worker was not heard from before its lease ran out"
        lose(session, cell, attempt, Verdict.LOST, settings)
        reaped += 1
    return reaped


def lose(session: Session, cell: Cell, attempt: Attempt, verdict: Verdict, settings: Settings) -> None:
    """Ends an attempt that says nothing of the tree, and queues its cell again unless the cap or a cancel says no."""
    attempt.state = move_attempt(attempt.state, AttemptState.ENDED)
    attempt.verdict, attempt.ended_at, attempt.running_case = verdict, now(), None
    session.flush()
    cancelled = session.scalar(select(Job.cancel_requested_at).where(Job.id == cell.job_id)) is not None
    if cancelled or cell.attempts_since_queued >= settings.claim_cap:
        changes.end_cell(session, cell, Verdict.CANCELLED if cancelled else Verdict.INFRASTRUCTURE)
    else:
        requeue(session, cell)
    changes.settle(session, cell.job_id, [cell])
