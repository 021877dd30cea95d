"""Registers webhooks, and writes down what they are to be told: in the transaction of the job's own change."""

from __future__ import annotations

import datetime
import secrets

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from service.clock import now
from service.errors import NotFound, TargetRefused
from service.jobs import views as jobs
from service.models import Job, Webhook, WebhookDelivery
from service.outgoing import outbox
from service.outgoing.address import AddressRefused, Private, check_literal
from service.repositories import service as repositories
from service.settings import Settings
from service.states import JobState, SendState
from service.webhooks import signature
from service.webhooks.schemas import Event, EventBody, JobData, RotationInput, WebhookInput

KEPT = datetime.timedelta(days=30)
FORGOTTEN_AT_ONCE = 1000


def add(session: Session, body: WebhookInput, settings: Settings) -> Webhook:
    """A new webhook.

    Raises:
        RepositoryUnknown: there is no such repository.
        TargetRefused: the address is not called.
    """
    try:
        check_literal(body.url, Private.parse(settings.private_targets))
    except AddressRefused as error:
        raise TargetRefused(str(error)) from error
    repository = repositories.find(session, body.repository) if body.repository is not None else None
    webhook = Webhook(
        url=body.url,
        events=sorted(set(body.events)),
        repository_id=repository.id if repository else None,
        secret=body.secret or signature.new_secret(),
        created_at=now(),
    )
    session.add(webhook)
    session.flush()
    return webhook


def find(session: Session, webhook_id: int, *, lock: bool = False) -> Webhook:
    """One webhook.

    Raises:
        NotFound: there is none of this number.
    """
    webhook = session.get(Webhook, webhook_id, with_for_update=True if lock else None)
    if webhook is None:
        raise NotFound(f"there is no webhook {webhook_id}")
    return webhook


def remove(session: Session, webhook_id: int) -> None:
    """Forgets a webhook and its deliveries.

    Raises:
        NotFound: there is none of this number.
    """
    # Deliveries are locked before their webhook everywhere, so that nobody waits for nobody.
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id))
    session.delete(find(session, webhook_id))


def rotate(session: Session, webhook_id: int, body: RotationInput) -> Webhook:
    """Gives a webhook another secret. The one before signs too for a while, so that no receiver misses a beat.

    Raises:
        NotFound: there is none of this number.
    """
    webhook = find(session, webhook_id, lock=True)
    webhook.old_secret = webhook.secret if body.overlap_s else None
    webhook.old_until = now() + datetime.timedelta(seconds=body.overlap_s) if body.overlap_s else None
    webhook.secret = body.secret or signature.new_secret()
    return webhook


def enable(session: Session, webhook_id: int) -> Webhook:
    """Sends to a webhook again that was disabled.

    Raises:
        NotFound: there is none of this number.
    """
    webhook = find(session, webhook_id, lock=True)
    webhook.disabled_at, webhook.disabled_why, webhook.paused_until = None, "", None
    return webhook


def note(session: Session, job: Job, event: Event) -> None:
    """Puts an event of a job into the outbox of every webhook that wants it."""
    wanted = session.scalars(
        select(Webhook)
        .where(
            Webhook.disabled_at.is_(None),
            or_(Webhook.repository_id.is_(None), Webhook.repository_id == job.repository_id),
        )
        .order_by(Webhook.id)
        .with_for_update(read=True, key_share=True)  # one that is removed at this moment must not fail the job
    ).all()
    wanted = [webhook for webhook in wanted if event in webhook.events]
    if not wanted:
        return
    session.flush()
    moment = now()
    body = EventBody(type=event, timestamp=moment, data=JobData.of(jobs.get_job(session, job.id)))
    for webhook in wanted:
        session.add(
            WebhookDelivery(
                webhook_id=webhook.id,
                target=f"webhook:{webhook.id}",
                message=f"msg_{secrets.token_urlsafe(18)}",
                event=event,
                job_id=job.id,
                payload=body.model_dump(mode="json"),
                created_at=moment,
                state=SendState.WAITING,
                since=moment,
                due_at=moment,
                log=[],
            )
        )


def events(before: JobState | None, after: JobState, *, begun: bool) -> list[Event]:
    """What a job's change is told as. ``begun``: its first cell was claimed."""
    was_ended = before is not None and before.ended
    if after.ended:
        return [] if was_ended else [Event.ENDED]
    return [Event.STARTED] if begun or was_ended else []


def redeliver(session: Session, delivery_id: int) -> WebhookDelivery:
    """Sends a delivery again, under the same id, so that a receiver that has it already can tell.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.get(WebhookDelivery, delivery_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    outbox.ask(row, now())
    return row


def forget(session: Session) -> None:
    """Deletes deliveries that ended long ago, some at a time."""
    old = (
        select(WebhookDelivery.id)
        .where(WebhookDelivery.created_at < now() - KEPT, WebhookDelivery.state != SendState.WAITING)
        .order_by(WebhookDelivery.id)
        .limit(FORGOTTEN_AT_ONCE)
    )
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.id.in_(old)))
