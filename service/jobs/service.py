"""Stores jobs, cancels them and runs their cells again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.clock import now
from service.dispatch import outbox
from service.errors import ImportedResults, JobEnded, JobStopping, NotFound, NothingToRerun, RepositoryUnknown
from service.jobs import changes, notices
from service.jobs.planning import Plan
from service.jobs.schemas import JobInput
from service.models import Attempt, Cell, Job, Probe, Repository, Tree
from service.states import AttemptState, CellState, JobState, Origin, move_cell
from worker.encoding import encode
from worker.messages import Verdict

STOPPING_S = 5
"""When to ask again for a job that is still stopping: most tests end at once when they are told to."""


def create(session: Session, repository_id: int, body: JobInput, plan: Plan) -> Job:
    """The job of a plan, with its cells queued and workers woken after the commit."""
    job = Job(
        repository_id=repository_id,
        state=JobState.WAITING,
        priority=body.priority,
        label=body.label,
        work_package=body.work_package,
        requested_by=body.requested_by,
        reason=body.reason,
        request={},
        created_at=now(),
    )
    session.add(job)
    session.flush()
    fill(session, job, body, plan, left_out=plan.left_out)
    return job


def fill(session: Session, job: Job, body: JobInput, plan: Plan, left_out: Sequence[str] = ()) -> None:
    """Gives a job the cells of its plan, queued. ``left_out`` are runtimes that its submitter did without: where the
    tree's own ``[trigger]`` names the runtimes, they are all that it asks for.
    """
    moment = now()
    trees = [
        tree_of(session, job.repository_id, tree.commit, tree.digest, tree.probe, tree.probe_digest)
        for tree in plan.trees
    ]
    request = body.model_dump(mode="json", exclude={"trees", "dry_run"})
    request["trees"] = [
        {"ref": given.ref, "tree": tree.name} for given, tree in zip(body.trees, plan.given, strict=True)
    ]
    request["runtimes_left_out"] = list(left_out)
    job.request, job.state, job.planned, job.detail = request, JobState.WAITING, True, None
    for position, cell in enumerate(plan.cells):
        declared = plan.trees[cell.tree].config
        session.add(
            Cell(
                job_id=job.id,
                repository_id=job.repository_id,
                tree_id=trees[cell.tree].id,
                position=position,
                name=cell.name,
                runtime=cell.runtime.id,
                suite=cell.suite.name,
                kind=cell.suite.kind,
                priority=body.priority,
                suite_spec=encode(cell.suite),
                install=list(declared.install),
                failure_rules=encode(declared.failure_rules),
                state=CellState.QUEUED,
                queued_at=moment,
            )
        )
        outbox.wake(session, cell.suite.kind)
    session.flush()
    notices.note(session, job, None)


def tree_of(
    session: Session,
    repository_id: int,
    commit: str,
    digest: str,
    probe: bytes | None = None,
    probe_digest: str | None = None,
) -> Tree:
    """The tree's row. Another submission may be first with it: then that one's row is taken."""
    known = select(Tree).where(
        Tree.repository_id == repository_id,
        Tree.commit == commit,
        Tree.probe_digest.is_(None) if probe_digest is None else Tree.probe_digest == probe_digest,
    )
    tree = session.scalar(known)
    if tree is not None:
        return tree
    if probe_digest is not None and probe is not None:
        _add(session, Probe(digest=probe_digest, content=probe, created_at=now()))
    tree = Tree(repository_id=repository_id, commit=commit, probe_digest=probe_digest, digest=digest, created_at=now())
    return tree if _add(session, tree) else session.scalars(known).one()


def _add(session: Session, row: Probe | Tree) -> bool:
    """Inserts a row; returns whether it is new, which it is not where another transaction was first."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True


def cancel(session: Session, job_id: int, detail: str | None = None) -> None:
    """Ends what waits, and has the workers stop what runs. ``detail`` says why, where it was not a person's wish.

    Raises:
        NotFound: there is no such job.
        ImportedResults: its results were made elsewhere.
        JobEnded: it has ended.
    """
    if _cancel_unplanned(session, job_id, detail):
        return
    cells = _locked_cells(session, job_id)
    job = _own(session, job_id)
    if job.state.ended:
        raise JobEnded(f"job {job_id} has ended as {job.state}; there is nothing to cancel")
    job.cancel_requested_at, job.detail = now(), detail
    decided = set(session.scalars(select(Attempt.cell_id).join(Cell).where(Cell.job_id == job_id, Attempt.deciding)))
    for cell in cells:
        if cell.state is CellState.QUEUED and cell.id in decided:  # it waited to run again: its attempt still decides
            changes.end_cell(session, cell, Verdict.CANCELLED)
        elif cell.state is CellState.QUEUED:
            cell.state = move_cell(cell.state, CellState.ENDED)
            cell.verdict, cell.ended_at, cell.waiting_reason = Verdict.CANCELLED, now(), None
    running = [cell.id for cell in cells if cell.state is not CellState.ENDED]
    session.execute(
        update(Attempt)
        .where(Attempt.cell_id.in_(running), Attempt.state != AttemptState.ENDED)
        .values(stop_requested=True)
    )
    changes.settle(session, job_id, cells)


def _cancel_unplanned(session: Session, job_id: int, detail: str | None) -> bool:
    """Ends a job that has no cells yet. One statement: whoever plans it at this moment is before it or behind it."""
    moment = now()
    cancelled = session.scalar(
        update(Job)
        .where(Job.id == job_id, ~Job.planned, Job.state.in_((JobState.PLANNING, JobState.WAITING)))
        .values(
            state=JobState.CANCELLED,
            detail=detail,
            cancel_requested_at=moment,
            ended_at=moment,
            revision=Job.revision + 1,
        )
        .returning(Job.id)
    )
    if cancelled is None:
        return False
    notices.note_plan(session, session.get_one(Job, job_id, populate_existing=True), JobState.PLANNING)
    return True


def rerun(session: Session, job_id: int, chosen: Iterable[int] | None) -> None:
    """Queues cells again as a whole: those chosen, or all that ended without passing. Earlier attempts stay.

    A job that could not be planned is planned again.

    Raises:
        NotFound: there is no such job, or a chosen cell is not one of its.
        ImportedResults: its results were made elsewhere.
        NothingToRerun: no cell fits.
        JobStopping: it was cancelled, and something of it still runs.
        RepositoryUnknown: its repository was removed.
    """
    cells = _locked_cells(session, job_id)
    if not cells and _plan_again(session, job_id):
        return
    job = _own(session, job_id)
    stopping = [cell.name for cell in cells if cell.state is not CellState.ENDED]
    if job.cancel_requested_at is not None and stopping:  # what still stops would end as if this run were cancelled
        raise JobStopping(
            f"job {job_id} was cancelled and {stopping[0]} is still stopping ({len(stopping)} of {len(cells)} cells); "
            f"run it again in {STOPPING_S} s",
            STOPPING_S,
        )
    wanted = None if chosen is None else set(chosen)
    unknown = (wanted or set()) - {cell.id for cell in cells}
    if unknown:
        raise NotFound(f"job {job_id} has no cell {', '.join(map(str, sorted(unknown)))}")
    again = [
        cell
        for cell in cells
        if cell.state is CellState.ENDED
        and (cell.verdict is not Verdict.PASSED if wanted is None else cell.id in wanted)
    ]
    if not again:
        raise NothingToRerun(
            f"job {job_id} has no ended cell {'that did not pass' if wanted is None else 'among those named'}"
        )
    for cell in again:
        cell.state = move_cell(cell.state, CellState.QUEUED)
        cell.verdict, cell.ended_at, cell.queued_at, cell.attempts_since_queued = None, None, now(), 0
        outbox.wake(session, cell.kind)
    removed = select(Repository.name).where(Repository.id == job.repository_id, Repository.removed_at.is_not(None))
    if (name := session.scalar(removed)) is not None:
        raise RepositoryUnknown(f"repository {name!r} was removed; register it again with `replaybench repos add`")
    job.cancel_requested_at, job.detail = None, None
    changes.settle(session, job_id, again)


def _own(session: Session, job_id: int) -> Job:
    job = session.get_one(Job, job_id)
    if job.origin is Origin.IMPORTED:
        raise ImportedResults(
            f"job {job_id} holds results that were imported, which nobody can run again or cancel here; submit its "
            "commit to have it run, or import another report"
        )
    return job


def _locked_cells(session: Session, job_id: int) -> list[Cell]:
    statement = select(Cell).where(Cell.job_id == job_id).order_by(Cell.id).with_for_update(of=Cell)
    cells = list(session.scalars(statement))
    if not cells and session.get(Job, job_id) is None:
        raise NotFound(f"there is no job {job_id}")
    return cells


def _plan_again(session: Session, job_id: int) -> bool:
    job = session.get_one(Job, job_id, with_for_update=True, populate_existing=True)
    if job.planned or not job.state.ended:
        return False
    before = job.state
    job.state, job.detail, job.ended_at, job.cancel_requested_at = JobState.PLANNING, None, None, None
    changes.touch(session, job_id, [])
    notices.note_plan(session, job, before)
    return True
