"""What people see of webhooks and their deliveries."""

from __future__ import annotations

from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from service.access.scopes import Caller, Scope
from service.clock import now
from service.errors import NotFound
from service.models import Webhook, WebhookDelivery
from service.schemas import Page
from service.states import SendState
from service.webhooks.schemas import DeliveryOutput, Event, WebhookMade, WebhookOutput


def url_for(caller: Caller, url: str) -> str:
    """A webhook's URL as the caller may see it: many a receiver goes by a secret in it, so readers see its host."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}/"
    return url if caller.may(Scope.ADMIN) or url in (origin, origin[:-1]) else f"{origin}…"


def list_webhooks(session: Session, caller: Caller) -> list[WebhookOutput]:
    """Every webhook, the oldest first."""
    rows = session.scalars(select(Webhook).options(joinedload(Webhook.repository)).order_by(Webhook.id))
    return [WebhookOutput(**_fields(row, url_for(caller, row.url))) for row in rows]


def get_webhook(session: Session, webhook_id: int, caller: Caller) -> WebhookOutput:
    """One webhook.

    Raises:
        NotFound: there is none of this number.
    """
    row = _load(session, webhook_id)
    return WebhookOutput(**_fields(row, url_for(caller, row.url)))


def made(session: Session, webhook_id: int) -> WebhookMade:
    """One webhook with its secret, for whoever made that."""
    row = _load(session, webhook_id)
    return WebhookMade(**_fields(row, row.url), secret=row.secret)


def list_deliveries(
    session: Session, caller: Caller, webhook_id: int | None = None, before: int | None = None, limit: int = 50
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
    items = [_output(row, caller) for row in page]
    return Page(items=items, next=f"before={page[-1].id}" if len(rows) > limit else None)


def get_delivery(session: Session, delivery_id: int, caller: Caller) -> DeliveryOutput:
    """One delivery.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.scalar(
        select(WebhookDelivery).where(WebhookDelivery.id == delivery_id).options(joinedload(WebhookDelivery.webhook))
    )
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    return _output(row, caller)


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


def _fields(row: Webhook, url: str) -> dict[str, object]:
    overlapping = row.old_until is not None and row.old_until > now()
    return {
        "id": row.id,
        "url": url,
        "events": row.events,
        "repository": row.repository.name if row.repository is not None else None,
        "created_at": row.created_at,
        "old_secret_until": row.old_until if overlapping else None,
        "disabled_at": row.disabled_at,
        "disabled_why": row.disabled_why,
    }


def _output(row: WebhookDelivery, caller: Caller) -> DeliveryOutput:
    return DeliveryOutput(
        id=row.id,
        webhook=row.webhook_id,
        url=url_for(caller, row.webhook.url),
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
