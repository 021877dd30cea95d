"""What people see of deliveries."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from service.errors import NotFound
from service.hooks.schemas import DeliveryOutput
from service.models import Delivery
from service.schemas import Page

_LOADED = (joinedload(Delivery.repository), joinedload(Delivery.job))


def list_deliveries(session: Session, before: int | None = None, limit: int = 50) -> Page[DeliveryOutput]:
    """The latest deliveries, newest first; with ``before``, those older than that one."""
    statement = select(Delivery).options(*_LOADED).order_by(Delivery.id.desc()).limit(limit + 1)
    if before is not None:
        statement = statement.where(Delivery.id < before)
    rows = session.scalars(statement).all()
    page = rows[:limit]
    return Page(items=[_output(row) for row in page], next=f"before={page[-1].id}" if len(rows) > limit else None)


def get_delivery(session: Session, delivery_id: int) -> DeliveryOutput:
    """One delivery.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.scalar(
        select(Delivery).where(Delivery.id == delivery_id).options(*_LOADED).execution_options(populate_existing=True)
    )
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    return _output(row)


def _output(row: Delivery) -> DeliveryOutput:
    return DeliveryOutput(
        id=row.id,
        provider=row.provider,
        delivery=row.delivery,
        event=row.event,
        repository=row.repository.name,
        state=row.state,
        detail=row.detail or (row.job.detail if row.job is not None and row.job.detail else ""),
        job=row.job_id,
        job_state=row.job.state if row.job is not None else None,
        redeliverable=row.heard is not None,
        received_at=row.received_at,
    )
