"""Which cases of a job failed."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.errors import MatrixTooLarge, NotFound, SelectionEmpty
from service.models import Attempt, Case, Cell, Job
from worker.messages import Outcome

FAILED = (Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT)
MOST_CASES = 10_000


def failed_of(session: Session, job_id: int, repository_id: int) -> dict[tuple[str, str], list[str]]:
    """The node ids that failed in a job's deciding attempts, over its trees, by runtime and suite.

    Raises:
        NotFound: the repository has no such job.
        SelectionEmpty: none failed.
        MatrixTooLarge: more failed than one job may name.
    """
    job = session.scalar(select(Job.id).where(Job.id == job_id, Job.repository_id == repository_id))
    if job is None:
        raise NotFound(f"only_failed_of {job_id}: the repository has no such job")
    rows = session.execute(
        select(Cell.runtime, Cell.suite, Case.node_id)
        .join(Attempt, Attempt.cell_id == Cell.id)
        .join(Case, Case.attempt_id == Attempt.id)
        .where(Cell.job_id == job_id, Attempt.deciding, Case.last.is_(True), Case.outcome.in_(FAILED))
        .order_by(Case.id)
        .limit(MOST_CASES + 1)
    ).all()
    if not rows:
        raise SelectionEmpty(f"only_failed_of {job_id}: no case of that job's deciding attempts failed")
    if len(rows) > MOST_CASES:
        raise MatrixTooLarge(f"only_failed_of {job_id}: over {MOST_CASES} cases failed; name suites to run whole")
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for runtime, suite, node_id in rows:
        found[runtime, suite].append(node_id)
    return dict(found)
