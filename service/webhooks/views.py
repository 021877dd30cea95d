"""What people see of webhooks and their deliveries."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from service.clock import now
from service.errors import NotFound
from service.models import Webhook, WebhookDelivery
from service.schemas import Page
from service.states import SendState
from service.webhooks.schemas import DeliveryOutput, Event, WebhookMade, WebhookOutput


def list_webhooks(session: Session) -> list[WebhookOutput]:
    """Every webhook, the oldest first."""
    rows = session.scalars(select(Webhook).options(joinedload(Webhook.repository)).order_by(Webhook.id))
    return [WebhookOutput(**_fields(row)) for row in rows]


def get_webhook(session: Session, webhook_id: int) -> WebhookOutput:
    """One webhook.

    Raises:
        NotFound: there is none of this number.
    """
    return WebhookOutput(**_fields(_load(session, webhook_id)))


def made(session: Session, webhook_id: int) -> WebhookMade:
    """One webhook with its secret, for whoever made that."""
    row = _load(session, webhook_id)
    return WebhookMade(**_fields(row), secret=row.secret)


def list_deliveries(
    session: Session, webhook_id: int | None = None, before: int | None = None, limit: int = 50
) -> Page[DeliveryOutput]:
    """The latest deliveries, newest first; with ``before``, those older than that one."""
    statement = (
        select(WebhookDelivery)
        .options(joinedload(WebhookDelivery.webhook))
        .order_by(WebhookDelivery.id.desc())
        .limit(limit + 1)
    )
    if webhook_id is not None:
        statement = statement.where(WebhookDelivery.webhook_id == webhook_id)
    if before is not None:
        statement = statement.where(WebhookDelivery.id < before)
    rows = session.scalars(statement).all()
    page = rows[:limit]
    return Page(items=[_output(row) for row in page], next=f"before={page[-1].id}" if len(rows) > limit else None)


def get_delivery(session: Session, delivery_id: int) -> DeliveryOutput:
    """One delivery.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.scalar(
        select(WebhookDelivery).where(WebhookDelivery.id == delivery_id).options(joinedload(WebhookDelivery.webhook))
    )
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    return _output(row)


def _load(session: Session, webhook_id: int) -> Webhook:
    row = session.scalar(
        select(Webhook)
        .where(Webhook.id == webhook_id)
        .options(joinedload(Webhook.repository))
        .execution_options(populate_existing=True)
    )
    if row is None:
        raise NotFound(f"there is no webhook {webhook_id}")
    return row


def _fields(row: Webhook) -> dict[str, object]:
    overlapping = row.old_until is not None and row.old_until > now()
    return {
        "id": row.id,
        "url": row.url,
        "events": row.events,
        "repository": row.repository.name if row.repository is not None else None,
        "created_at": row.created_at,
        "old_secret_until": row.old_until if overlapping else None,
        "disabled_at": row.disabled_at,
        "disabled_why": row.disabled_why,
    }


def _output(row: WebhookDelivery) -> DeliveryOutput:
    return DeliveryOutput(
        id=row.id,
        webhook=row.webhook_id,
        url=row.webhook.url,
        message=row.message,
        event=Event(row.event),
        job=row.job_id,
        state=row.state,
        tries=row.tries,
        status=row.status,
        detail=row.detail,
        log=row.log,
        created_at=row.created_at,
        sent_at=row.sent_at,
        next_try_at=row.due_at if row.state is SendState.WAITING else None,
    )
