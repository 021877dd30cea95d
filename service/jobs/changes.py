"""What follows from a cell's change: the job's revision and its state. Every writer of cells ends here.

Locks are taken in one order: worker, cells by number, attempt, job. So no two writers wait for each other. The job's
row is locked by the update of its revision; only then are the other cells read, so that of two cells that end at once
the second sees the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.clock import now
from service.jobs import notices
from service.models import Attempt, Cell, Job
from service.states import AttemptState, CellState, JobState, deciding, job_state, move_cell
from worker.messages import Verdict


def touch(session: Session, job_id: int, cells: Iterable[Cell]) -> None:
    """Gives the job its next revision, and the cells that changed the same one."""
    session.flush()
    revision = session.scalar(
        update(Job).where(Job.id == job_id).values(revision=Job.revision + 1).returning(Job.revision)
    )
    for cell in cells:
        cell.revision = revision or 0


def settle(session: Session, job_id: int, cells: Iterable[Cell]) -> JobState:
    """After a change of cells' states: the job's revision and, from all its cells, its state."""
    touch(session, job_id, cells)
    session.flush()
    job = session.get_one(Job, job_id, populate_existing=True)
    rows = session.execute(
        select(Cell.state, Cell.verdict, func.count()).where(Cell.job_id == job_id).group_by(Cell.state, Cell.verdict)
    ).all()
    before = job.state
    job.state = job_state(
        [(state, verdict) for state, verdict, _ in rows], cancelled=job.cancel_requested_at is not None
    )
    begun = job.state is JobState.RUNNING and job.started_at is None
    if begun:
        job.started_at = now()
    job.ended_at = now() if job.state.ended else None
    notices.note(session, job, before, begun=begun)
    return job.state


def end_cell(session: Session, cell: Cell, fallback: Verdict) -> None:
    """Ends a cell by its deciding attempt, or where none decides, with a verdict that says why."""
    attempts = session.execute(
        select(Attempt.id, Attempt.verdict)
        .where(Attempt.cell_id == cell.id, Attempt.state == AttemptState.ENDED)
        .order_by(Attempt.number)
    ).all()
    verdicts = {key: verdict for key, verdict in attempts if verdict is not None}
    decider = deciding(verdicts.items())
    of_cell = update(Attempt).where(Attempt.cell_id == cell.id)
    session.execute(of_cell.where(Attempt.deciding).values(deciding=False))
    if decider is not None:
        session.execute(of_cell.where(Attempt.id == decider).values(deciding=True))
    cell.verdict = verdicts[decider] if decider is not None else fallback
    cell.state = move_cell(cell.state, CellState.ENDED)
    cell.ended_at = now()
    cell.waiting_reason = cell.reserved_worker_id = None
