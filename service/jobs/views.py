"""What people see of jobs and cells. A listing costs a fixed number of queries, however long it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.orm import Session, joinedload

from service.errors import NotFound
from service.jobs.schemas import CellOutput, JobOutput, Snapshot
from service.matrix.expand import tree_name
from service.models import Attempt, Cell, Job, Tree, Worker
from service.results.evidence import gpu_of
from service.results.flaky import flaky_cells
from service.schemas import Page
from service.states import AttemptState, CellState, Origin
from worker.encoding import decode
from worker.messages import RuntimeSpec, Selection, Verdict


def list_jobs(session: Session, before: int | None = None, limit: int = 50) -> Page[JobOutput]:
    """The latest jobs, newest first; with ``before``, those older than that job."""
    statement = select(Job).options(joinedload(Job.repository)).order_by(Job.id.desc()).limit(limit + 1)
    if before is not None:
        statement = statement.where(Job.id < before)
    jobs = session.scalars(statement).all()
    page = jobs[:limit]
    return Page(items=_jobs(session, page), next=f"before={page[-1].id}" if len(jobs) > limit else None)


def get_job(session: Session, job_id: int) -> JobOutput:
    """One job.

    Raises:
        NotFound: there is none of this number.
    """
    job = session.scalar(select(Job).where(Job.id == job_id).options(joinedload(Job.repository)))
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return _jobs(session, [job])[0]


def revision(session: Session, job_id: int) -> int:
    """How often a job has changed; the same number means that what is shown of it is the same.

    Raises:
        NotFound: there is no such job.
    """
    found = session.scalar(select(Job.revision).where(Job.id == job_id))
    if found is None:
        raise NotFound(f"there is no job {job_id}")
    return found


def list_cells(session: Session, job_id: int, since: int = 0) -> list[CellOutput]:
    """A job's cells in the order of its matrix; with ``since``, those that changed after that revision.

    Raises:
        NotFound: there is no such job.
    """
    if session.scalar(select(Job.id).where(Job.id == job_id)) is None:
        raise NotFound(f"there is no job {job_id}")
    return _outputs(session, session.execute(_cells(Cell.job_id == job_id, Cell.revision > since)).all())


def get_cell(session: Session, cell_id: int) -> CellOutput:
    """One cell.

    Raises:
        NotFound: there is none of this number.
    """
    rows = session.execute(_cells(Cell.id == cell_id)).all()
    if not rows:
        raise NotFound(f"there is no cell {cell_id}")
    return _outputs(session, rows)[0]


def selection_of(suite_spec: Mapping[str, Any]) -> str | None:
    """What of its suite a cell runs, in words; ``None`` where it is the whole."""
    found = suite_spec.get("selection")
    return decode(Selection, found).title if found else None


def snapshot(session: Session, job_id: int, since: int) -> Snapshot | None:
    """What changed in a job after a revision, or ``None`` if nothing did. ``since`` 0 gives all of it.

    Raises:
        NotFound: there is no such job.
    """
    if revision(session, job_id) <= since:
        return None
    return Snapshot(job=get_job(session, job_id), cells=list_cells(session, job_id, since))


def shown_attempt(*cells: ColumnElement[bool]) -> Select[int, int]:
    """Of each of these cells the attempt to show: the one under way, else the deciding one, else the latest."""
    live = func.max(Attempt.id).filter(Attempt.state != AttemptState.ENDED)
    deciding = func.max(Attempt.id).filter(Attempt.deciding)
    latest = func.max(Attempt.id)
    return (
        select(Attempt.cell_id, func.coalesce(live, deciding, latest).label("attempt_id"))
        .join(Cell, Cell.id == Attempt.cell_id)
        .where(*cells)
        .group_by(Attempt.cell_id)
    )


def _cells(*cells: ColumnElement[bool]) -> Select[Cell, Tree, Attempt, str, Origin]:
    shown = shown_attempt(*cells).subquery()
    return (
        select(Cell, Tree, Attempt, Worker.name, Job.origin)
        .join(Job, Job.id == Cell.job_id)
        .join(Tree, Tree.id == Cell.tree_id)
        .outerjoin(shown, shown.c.cell_id == Cell.id)
        .outerjoin(Attempt, Attempt.id == shown.c.attempt_id)
        .outerjoin(Worker, Worker.id == Attempt.worker_id)
        .where(*cells)
        .order_by(Cell.position)
    )


def _outputs(session: Session, rows: Sequence[Row[Cell, Tree, Attempt, str, Origin]]) -> list[CellOutput]:
    ids = [cell.id for cell, *_ in rows]
    attempts = dict(
        session.execute(
            select(Attempt.cell_id, func.count()).where(Attempt.cell_id.in_(ids)).group_by(Attempt.cell_id)
        ).all()
    )
    several = [cell_id for cell_id, number in attempts.items() if number > 1]
    flaky = flaky_cells(session, several) if several else set()
    return [
        CellOutput(
            id=cell.id,
            job=cell.job_id,
            position=cell.position,
            name=cell.name,
            tree=tree_name(tree.commit, tree.probe_digest),
            runtime=cell.runtime,
            runtime_title=RuntimeSpec.parse(cell.runtime).title,
            suite=cell.suite,
            kind=cell.kind,
            selection=selection_of(cell.suite_spec),
            run=cell.suite_spec.get("run", 1),
            state=cell.state,
            verdict=cell.verdict,
            revision=cell.revision,
            attempt=attempt.id if attempt else None,
            attempts=attempts.get(cell.id, 0),
            counts=dict(attempt.counts) if attempt else {},
            collected=attempt.collected if attempt else 0,
            running_case=attempt.running_case if attempt else None,
            flaky=cell.id in flaky,
            gpu=gpu_of(attempt.environment) if attempt else None,
            worker=worker,
            detail=attempt.detail if attempt else "",
            waiting_reason=cell.waiting_reason,
            origin=origin,
            queued_at=cell.queued_at,
            started_at=attempt.started_at if attempt else None,
            ended_at=cell.ended_at,
        )
        for cell, tree, attempt, worker, origin in rows
    ]


def _jobs(session: Session, jobs: Sequence[Job]) -> list[JobOutput]:
    ids = [job.id for job in jobs]
    states, trees = _states(session, ids), _trees(session, ids)
    counts: dict[int, Counter[str]] = {job_id: Counter() for job_id in ids}
    shown = shown_attempt(Cell.job_id.in_(ids)).add_columns(Cell.job_id).group_by(Cell.job_id).subquery()
    rows = session.execute(select(shown.c.job_id, Attempt.counts).join(Attempt, Attempt.id == shown.c.attempt_id))
    for job_id, cell_counts in rows:
        counts[job_id].update(cell_counts)
    return [
        JobOutput(
            id=job.id,
            repository=job.repository.name,
            state=job.state,
            origin=job.origin,
            revision=job.revision,
            priority=job.priority,
            label=job.label,
            work_package=job.work_package,
            requested_by=job.requested_by,
            reason=job.reason,
            detail=job.detail,
            trees=trees[job.id],
            cells=states[job.id],
            counts=dict(counts[job.id]),
            created_at=job.created_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            url=f"/jobs/{job.id}",
        )
        for job in jobs
    ]


def _states(session: Session, jobs: Sequence[int]) -> dict[int, dict[str, int]]:
    """Of each job, how many cells are in each state or ended with each verdict."""
    found: dict[int, dict[str, int]] = {job_id: {} for job_id in jobs}
    rows = session.execute(
        select(Cell.job_id, Cell.state, Cell.verdict, func.count())
        .where(Cell.job_id.in_(jobs))
        .group_by(Cell.job_id, Cell.state, Cell.verdict)
        .order_by(func.min(Cell.position))
    )
    for job_id, state, verdict, number in rows:
        word = _word(state, verdict)
        found[job_id][word] = found[job_id].get(word, 0) + number
    return found


def _trees(session: Session, jobs: Sequence[int]) -> dict[int, list[str]]:
    """Of each job, its trees' names in the order of its matrix."""
    found: dict[int, list[str]] = {job_id: [] for job_id in jobs}
    first = (
        select(Cell.job_id, Cell.tree_id, func.min(Cell.position).label("position"))
        .where(Cell.job_id.in_(jobs))
        .group_by(Cell.job_id, Cell.tree_id)
        .subquery()
    )
    rows = session.execute(
        select(first.c.job_id, Tree.commit, Tree.probe_digest)
        .join(Tree, Tree.id == first.c.tree_id)
        .order_by(first.c.position)
    )
    for job_id, commit, probe_digest in rows:
        found[job_id].append(tree_name(commit, probe_digest))
    return found


def _word(state: CellState, verdict: Verdict | None) -> str:
    return verdict if state is CellState.ENDED and verdict is not None else state
