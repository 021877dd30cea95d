"""One case over trees: what each deciding attempt observed of it."""

from __future__ import annotations

import hashlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.compare.schemas import HistoryEntry
from service.errors import NotFound
from service.matrix.expand import tree_name
from service.models import Attempt, Case, Cell, Repository, Tree
from service.repositories import service as repositories
from service.results.evidence import gpu_of
from service.schemas import Page
from worker.messages import RuntimeSpec


def history(
    session: Session, repository: str, node_id: str, suite: str | None, before: int | None, limit: int
) -> Page[HistoryEntry]:
    """The observations that count, newest first; with ``before``, those older than that observation.

    Raises:
        RepositoryUnknown: there is no such repository.
    """
    repository_id = repositories.find(session, repository, removed=True).id
    digest = hashlib.sha256(node_id.encode(errors="surrogatepass")).hexdigest()
    statement = (
        select(Case, Attempt, Cell, Tree)
        .join(Attempt, Attempt.id == Case.attempt_id)
        .join(Cell, Cell.id == Attempt.cell_id)
        .join(Tree, Tree.id == Cell.tree_id)
        .where(Case.node_digest == digest, Case.last.is_(True), Attempt.deciding, Cell.repository_id == repository_id)
        .order_by(Case.id.desc())
        .limit(limit + 1)
    )
    if suite is not None:
        statement = statement.where(Cell.suite == suite)
    if before is not None:
        statement = statement.where(Case.id < before)
    rows = session.execute(statement).all()
    page = [_entry(case, attempt, cell, tree) for case, attempt, cell, tree in rows[:limit]]
    return Page(items=page, next=f"before={page[-1].case}" if len(rows) > limit else None)


def named(session: Session, case_id: int) -> tuple[str, str, str]:
    """Of an observation the repository, the suite and the node id: what its history is asked by.

    Raises:
        NotFound: there is no such observation.
    """
    row = session.execute(
        select(Repository.name, Cell.suite, Case.node_id)
        .join(Cell, Cell.repository_id == Repository.id)
        .join(Attempt, Attempt.cell_id == Cell.id)
        .join(Case, Case.attempt_id == Attempt.id)
        .where(Case.id == case_id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"there is no case {case_id}")
    return row[0], row[1], row[2]


def _entry(case: Case, attempt: Attempt, cell: Cell, tree: Tree) -> HistoryEntry:
    return HistoryEntry(
        case=case.id,
        job=cell.job_id,
        cell=cell.id,
        attempt=attempt.id,
        tree=tree_name(tree.commit, tree.probe_digest),
        commit=tree.commit,
        runtime=cell.runtime,
        runtime_title=RuntimeSpec.parse(cell.runtime).full_title,
        suite=cell.suite,
        occurrence=case.occurrence,
        outcome=case.outcome,
        failure_class=case.failure_class,
        duration_s=case.duration_s,
        message=case.message,
        comparison_key=attempt.comparison_key,
        gpu=gpu_of(attempt.environment),
        origin=attempt.origin,
        ended_at=attempt.ended_at,
    )
