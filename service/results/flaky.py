"""Finds cells whose attempts disagree on a case."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.models import Attempt, Case
from service.states import UNDECIDING, AttemptState
from worker.messages import Outcome


def flaky_cells(session: Session, cells: Iterable[int]) -> set[int]:
    """Those of the cells of which two ended attempts observed a case differently.

    Attempts that say nothing of the tree (lost, infrastructure) and cases that were not observed do not count.
    """
    judged = (Attempt.state == AttemptState.ENDED, Attempt.verdict.not_in(UNDECIDING))
    several = (
        select(Attempt.cell_id)
        .where(Attempt.cell_id.in_(list(cells)), *judged)
        .group_by(Attempt.cell_id)
        .having(func.count() > 1)
    )
    differing = (
        select(Attempt.cell_id)
        .join(Case, Case.attempt_id == Attempt.id)
        .where(Attempt.cell_id.in_(several), *judged, Case.last.is_(True), Case.outcome != Outcome.NOT_OBSERVED)
        .group_by(Attempt.cell_id, Case.node_digest, Case.occurrence)
        .having(func.count(Case.outcome.distinct()) > 1)
    )
    return set(session.scalars(differing))
