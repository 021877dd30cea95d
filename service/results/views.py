"""What people see of attempts, cases and tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.clock import elapsed_s
from service.errors import NotFound
from service.jobs import views as jobs
from service.jobs.schemas import CellOutput
from service.models import Artifact, Attempt, Case, Cell, Process, Tree, Worker
from service.results import table
from service.results.schemas import ArtifactOutput, AttemptOutput, CaseOutput, ProcessOutput, TableOutput, TableRow
from service.schemas import Page
from worker.messages import Outcome, RuntimeSpec

Child = TypeVar("Child", Process, Artifact)

UNPASSED = tuple(outcome for outcome in Outcome if outcome is not Outcome.PASSED)
"""A passed case has no failure class. Saying so lets an index leave the many that passed unread."""


def list_attempts(session: Session, cell_id: int) -> list[AttemptOutput]:
    """A cell's attempts, earliest first.

    Raises:
        NotFound: there is no such cell.
    """
    if session.scalar(select(Cell.id).where(Cell.id == cell_id)) is None:
        raise NotFound(f"there is no cell {cell_id}")
    attempts = session.scalars(select(Attempt).where(Attempt.cell_id == cell_id).order_by(Attempt.number)).all()
    return _attempts(session, attempts)


def get_attempt(session: Session, attempt_id: int) -> AttemptOutput:
    """One attempt.

    Raises:
        NotFound: there is none of this number.
    """
    attempts = session.scalars(select(Attempt).where(Attempt.id == attempt_id)).all()
    if not attempts:
        raise NotFound(f"there is no attempt {attempt_id}")
    return _attempts(session, attempts)[0]


def list_cases(
    session: Session,
    attempt_id: int,
    *,
    outcome: Outcome | None = None,
    last: bool = True,
    after: int = 0,
    limit: int = 200,
) -> Page[CaseOutput]:
    """An attempt's observations in the order of their storing; without ``last``, also those that a later one replaced.

    Raises:
        NotFound: there is no such attempt.
    """
    if session.scalar(select(Attempt.id).where(Attempt.id == attempt_id)) is None:
        raise NotFound(f"there is no attempt {attempt_id}")
    statement = select(Case).where(Case.attempt_id == attempt_id, Case.id > after).order_by(Case.id).limit(limit + 1)
    if outcome is not None:
        statement = statement.where(Case.outcome == outcome)
    if last:
        statement = statement.where(Case.last)
    cases = session.scalars(statement).all()
    page = [CaseOutput.model_validate(case) for case in cases[:limit]]
    return Page(items=page, next=f"after={page[-1].id}" if len(cases) > limit else None)


def get_artifact(session: Session, artifact_id: int) -> ArtifactOutput:
    """One artifact.

    Raises:
        NotFound: there is none of this number.
    """
    artifact = session.get(Artifact, artifact_id)
    if artifact is None:
        raise NotFound(f"there is no artifact {artifact_id}")
    return ArtifactOutput.model_validate(artifact)


def job_table(session: Session, job_id: int) -> TableOutput:
    """A job's table, from its stored attempts.

    Raises:
        NotFound: there is no such job.
    """
    job = jobs.get_job(session, job_id)
    cells = jobs.list_cells(session, job_id)
    shown = [cell.attempt for cell in cells if cell.attempt is not None]
    attempts = {row.id: row for row in session.scalars(select(Attempt).where(Attempt.id.in_(shown)))}
    classes, reasons = _failure_classes(session, shown), _skip_reasons(session, shown)
    rows = [_row(cell, attempts.get(cell.attempt or 0), classes, reasons) for cell in cells]
    return TableOutput(
        job=job_id,
        repository=job.repository,
        state=job.state,
        suites=table.varying([row.suite for row in rows]),
        lightnings=table.varying([row.lightning for row in rows]),
        rows=rows,
        detail=job.detail,
    )


def _row(
    cell: CellOutput,
    attempt: Attempt | None,
    classes: dict[int, dict[str, int]],
    reasons: dict[int, dict[str, int]],
) -> TableRow:
    begun = attempt.started_at or attempt.claimed_at if attempt else None
    return TableRow(
        cell=cell.id,
        attempt=cell.attempt,
        tree=cell.tree,
        runtime=cell.runtime_title,
        lightning=RuntimeSpec.parse(cell.runtime).lightning,
        suite=cell.suite,
        selection=cell.selection,
        run=cell.run,
        result=_result(cell),
        verdict=cell.verdict,
        counts=cell.counts,
        failure_classes=classes.get(cell.attempt or 0, {}),
        skip_reasons=reasons.get(cell.attempt or 0, {}),
        duration_s=elapsed_s(begun, attempt.ended_at) if attempt and attempt.ended_at and begun else None,
        gpu=cell.gpu,
        flaky=cell.flaky,
        attempts=cell.attempts,
        digest=attempt.digest if attempt else None,
        origin=cell.origin,
    )


def _result(cell: CellOutput) -> str:
    if cell.verdict is None:
        return table.result_so_far(cell.counts, cell.state)
    return table.result(cell.counts, cell.verdict, cell.detail)


def _failure_classes(session: Session, attempts: Sequence[int]) -> dict[int, dict[str, int]]:
    rows = session.execute(
        select(Case.attempt_id, Case.failure_class, func.count())
        .where(Case.attempt_id.in_(attempts), Case.last.is_(True), Case.outcome.in_(UNPASSED))
        .where(Case.failure_class.is_not(None))
        .group_by(Case.attempt_id, Case.failure_class)
    )
    return _grouped((attempt, str(name), count) for attempt, name, count in rows)


def _skip_reasons(session: Session, attempts: Sequence[int]) -> dict[int, dict[str, int]]:
    rows = session.execute(
        select(Case.attempt_id, Case.message, func.count())
        .where(Case.attempt_id.in_(attempts), Case.last.is_(True), Case.outcome == Outcome.SKIPPED)
        .group_by(Case.attempt_id, Case.message)
    )
    return _grouped((attempt, table.skip_reason(reason), count) for attempt, reason, count in rows)


def _grouped(rows: Iterable[tuple[int, str, int]]) -> dict[int, dict[str, int]]:
    groups: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for attempt, name, count in rows:
        groups[attempt][name] += count
    return {attempt: dict(counts.most_common()) for attempt, counts in groups.items()}


def _attempts(session: Session, attempts: Sequence[Attempt]) -> list[AttemptOutput]:
    ids = [attempt.id for attempt in attempts]
    processes = _children(session, Process, ids)
    artifacts = _children(session, Artifact, ids)
    workers = dict(session.execute(select(Worker.id, Worker.name)).all())
    of_cells = Cell.id.in_({attempt.cell_id for attempt in attempts})
    trees = dict(
        session.execute(select(Cell.id, Tree.digest).join(Tree, Tree.id == Cell.tree_id).where(of_cells)).all()
    )
    return [
        AttemptOutput(
            id=attempt.id,
            cell=attempt.cell_id,
            number=attempt.number,
            worker=workers[attempt.worker_id] if attempt.worker_id is not None else None,
            origin=attempt.origin,
            tree=trees[attempt.cell_id],
            state=attempt.state,
            verdict=attempt.verdict,
            cause=attempt.cause,
            detail=attempt.detail,
            deciding=attempt.deciding,
            claimed_at=attempt.claimed_at,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            counts=attempt.counts,
            collected=attempt.collected,
            environment=attempt.environment,
            usage=attempt.usage,
            comparison_key=attempt.comparison_key,
            running_case=attempt.running_case,
            log_tail=attempt.log_tail,
            processes=[ProcessOutput.model_validate(process) for process in processes[attempt.id]],
            artifacts=[ArtifactOutput.model_validate(artifact) for artifact in artifacts[attempt.id]],
        )
        for attempt in attempts
    ]


def _children(session: Session, kind: type[Child], attempts: Sequence[int]) -> defaultdict[int, list[Child]]:
    groups: defaultdict[int, list[Child]] = defaultdict(list)
    for child in session.scalars(select(kind).where(kind.attempt_id.in_(attempts)).order_by(kind.id)):
        groups[child.attempt_id].append(child)
    return groups
