"""What people see of workers."""

from __future__ import annotations

import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.clock import now
from service.models import Worker
from service.settings import Settings
from service.workers.schemas import WorkerOutput


def live_after(settings: Settings) -> datetime.datetime:
    """A worker heard from after this moment counts as alive."""
    return now() - datetime.timedelta(seconds=settings.lease_s)


def list_workers(session: Session, settings: Settings) -> list[WorkerOutput]:
    """Every worker, the one heard from last first."""
    since = live_after(settings)
    workers = session.scalars(select(Worker).order_by(Worker.seen_at.desc()))
    return [
        WorkerOutput(
            id=worker.id,
            name=worker.name,
            host=worker.host,
            capabilities=worker.capabilities,
            registered_at=worker.registered_at,
            seen_at=worker.seen_at,
            live=worker.seen_at >= since,
        )
        for worker in workers
    ]
