"""Takes a repository away: without a trace where it has no jobs, else at rest, and kept for its evidence."""

from __future__ import annotations

import contextlib
import shutil

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.access.scopes import Caller
from service.audit import service as audit
from service.clock import now
from service.database import Database
from service.errors import JobEnded, RepositoryInUse
from service.jobs import service as jobs
from service.models import Delivery, HookSecret, Job, Repository, RepositoryCredential, Tree, Webhook, WebhookDelivery
from service.repositories.mirror import Mirror
from service.states import ENDED_JOB_STATES
from service.statuses import service as statuses
from service.words import number

WHY = "its repository was removed"


def remove(session: Session, repository: Repository, *, force: bool) -> int:
    """Removes a repository with its secrets; returns how many jobs are kept. Those that run are the caller's to cancel,
    by ``cancel_all``: nothing new begins any more.

    Raises:
        RepositoryInUse: it has jobs, and nobody said to remove it all the same.
    """
    of_it = Job.repository_id == repository.id
    kept = session.scalar(select(func.count()).where(of_it)) or 0
    if kept and not force:
        raise RepositoryInUse(
            f"repository {repository.name!r} has {number(kept, 'job')}; "
            f"`replaybench repos remove {repository.name} --force` cancels those that have not ended, keeps all as "
            "evidence, and takes no more"
        )
    statuses.unlink(session, repository)
    for secret in (HookSecret, RepositoryCredential):
        session.execute(delete(secret).where(secret.repository_id == repository.id))
    if kept:
        repository.removed_at = now()
        return kept
    hooks = select(Webhook.id).where(Webhook.repository_id == repository.id)
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook_id.in_(hooks)))
    for table in (Webhook, Delivery, Tree):
        session.execute(delete(table).where(table.repository_id == repository.id))
    session.flush()
    session.delete(repository)
    return 0


def cancel_all(database: Database, repository_id: int, caller: Caller) -> None:
    """Cancels what has not ended. Each job in a transaction of its own: one that holds a job must not wait for the
    cells of another."""
    live = select(Job.id).where(Job.repository_id == repository_id, Job.state.not_in(ENDED_JOB_STATES))
    with database.read() as session:
        found = session.scalars(live.order_by(Job.id)).all()
    for job in found:
        with contextlib.suppress(JobEnded), database.write() as session:
            jobs.cancel(session, job, WHY)
            audit.note(session, caller, "job.cancel", f"job {job}", reason=WHY)


def forget_mirror(mirror: Mirror) -> None:
    """Removes the mirror, which is fetched again when the repository comes back."""
    for left in mirror.remains:
        shutil.rmtree(left, ignore_errors=True)
