"""Reads the two sides of a comparison: for each runtime and suite the attempt that counts, and what it observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.compare.comparison import Key, Seen, Side
from service.jobs.views import selection_of
from service.models import Attempt, Case, Cell
from service.states import UNDECIDING, AttemptState, Origin
from worker.messages import Outcome, Verdict

Place = tuple[str, str]
"""Runtime and suite."""


@dataclass(frozen=True)
class Counting:
    """The attempt that counts for one place, and the others of the same place and key that may disagree with it."""

    job: int
    cell: int
    attempt: int
    verdict: Verdict | None
    key: str | None
    selection: str | None
    origin: Origin
    collected: int
    others: tuple[int, ...] = ()


def counting(session: Session, tree_id: int, job_id: int | None) -> dict[Place, Counting]:
    """For each place of a tree the latest deciding attempt: one of ours before an imported one, one of a whole
    suite before any selection."""
    groups: defaultdict[Place, list[Counting]] = defaultdict(list)
    rest: defaultdict[Place, list[tuple[int, str | None]]] = defaultdict(list)
    for cell, attempt_id, verdict, key, deciding, worker, collected in session.execute(_ended(tree_id, job_id)):
        origin = Origin.IMPORTED if worker is None else Origin.RUN
        place = (cell.runtime, cell.suite)
        rest[place].append((attempt_id, key))
        if deciding:
            selection = selection_of(cell.suite_spec)
            one = Counting(cell.job_id, cell.id, attempt_id, verdict, key, selection, origin, collected)
            groups[place].append(one)
    chosen = {}
    for place, found in groups.items():
        best = max(found, key=lambda one: (one.origin is Origin.RUN, one.selection is None, one.attempt))
        others = tuple(attempt for attempt, key in rest[place] if key == best.key)
        chosen[place] = replace(best, others=others if len(others) > 1 else ())
    return chosen


def _ended(tree_id: int, job_id: int | None) -> Select[Cell, int, Verdict | None, str | None, bool, int | None, int]:
    of_attempt = (Attempt.id, Attempt.verdict, Attempt.comparison_key, Attempt.deciding, Attempt.worker_id)
    statement = (
        select(Cell, *of_attempt, Attempt.collected)
        .join(Attempt, Attempt.cell_id == Cell.id)
        .where(Cell.tree_id == tree_id, Attempt.state == AttemptState.ENDED, Attempt.verdict.not_in(UNDECIDING))
        .order_by(Attempt.id)
    )
    return statement if job_id is None else statement.where(Cell.job_id == job_id)


def places(session: Session, tree_id: int, job_id: int | None) -> set[Place]:
    """Every runtime and suite that a tree was asked for, ended or not."""
    statement = select(Cell.runtime, Cell.suite).where(Cell.tree_id == tree_id).distinct()
    if job_id is not None:
        statement = statement.where(Cell.job_id == job_id)
    return {(runtime, suite) for runtime, suite in session.execute(statement)}


def side(session: Session, found: Counting | None) -> Side:
    """One side of a pair, with its cases."""
    if found is None:
        return Side()
    return Side(
        verdict=found.verdict,
        key=found.key,
        whole=found.selection is None,
        collected=found.collected,
        imported=found.origin is Origin.IMPORTED,
        cases=_cases(session, found.attempt),
        flaky=_flaky(session, found.others) if found.others else frozenset(),
    )


def _cases(session: Session, attempt_id: int) -> dict[Key, Seen]:
    rows = session.execute(
        select(Case.node_digest, Case.occurrence, Case.id, Case.outcome, Case.failure_class).where(
            Case.attempt_id == attempt_id, Case.last.is_(True)
        )
    )
    return {(digest, occurrence): Seen(key, outcome, name) for digest, occurrence, key, outcome, name in rows}


def _flaky(session: Session, attempts: Sequence[int]) -> Set[Key]:
    """The cases of which two of these attempts observed different outcomes."""
    rows = session.execute(
        select(Case.node_digest, Case.occurrence)
        .where(Case.attempt_id.in_(attempts), Case.last.is_(True), Case.outcome != Outcome.NOT_OBSERVED)
        .group_by(Case.node_digest, Case.occurrence)
        .having(func.count(Case.outcome.distinct()) > 1)
    )
    return {(digest, occurrence) for digest, occurrence in rows}
