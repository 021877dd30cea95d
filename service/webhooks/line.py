"""How the courier sends events to webhooks."""

from __future__ import annotations

import datetime
import json

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service.clock import now
from service.models import Webhook, WebhookDelivery
from service.outgoing import outbox
from service.outgoing.call import Request
from service.outgoing.courier import Parcel
from service.outgoing.retry import Again, Answer, Never, Step, Taken, wait_asked
from service.settings import Settings
from service.webhooks import service, signature

LOGGED = 30
"""Tries that a delivery's log keeps: the latest."""


class WebhookLine:
    """Deliveries: each event to each webhook, signed at the moment of sending."""

    model = WebhookDelivery

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def ready(self, moment: datetime.datetime) -> ColumnElement[bool]:
        """What holds for deliveries whose webhook has not asked to be left alone."""
        return WebhookDelivery.webhook_id.not_in(select(Webhook.id).where(Webhook.paused_until > moment))

    def prepare(self, session: Session, row: WebhookDelivery) -> Request | Step:
        """The signed call."""
        webhook = session.get_one(Webhook, row.webhook_id)
        if webhook.disabled_at is not None:
            return Never(f"the webhook is disabled: {webhook.disabled_why}")
        moment = now()
        body = json.dumps(self._addressed(row.payload), ensure_ascii=False, separators=(",", ":")).encode()
        signers = [webhook.secret]
        if webhook.old_secret is not None and webhook.old_until is not None and webhook.old_until > moment:
            signers.append(webhook.old_secret)
        signed = signature.headers(row.message, int(moment.timestamp()), body, signers)
        return Request(webhook.url, {"Content-Type": "application/json", **signed}, body)

    def _addressed(self, payload: dict[str, object]) -> dict[str, object]:
        """The payload with the address of the job's page as people elsewhere reach it."""
        data = payload.get("data")
        if not isinstance(data, dict):
            return payload
        return {**payload, "data": {**data, "url": self._settings.page(data["url"]) or data["url"]}}

    def judge(self, session: Session, row: WebhookDelivery, answer: Answer) -> Step:  # noqa: ARG002 -- as all lines do
        """What the receiver's answer means."""
        if 200 <= answer.status < 300:
            return Taken()
        said = f"{answer.status} {answer.text}".strip()
        if answer.status == 410:
            return Never(f"{said} (the receiver wants no more)", disable=True)
        if 300 <= answer.status < 400:
            return Again(f"{said} (redirects are not followed; register the new address)")
        return Again(said, wait_asked(answer, now()))

    def settle(
        self, session: Session, row: WebhookDelivery, step: Step, status: int | None, parcel: Parcel | None
    ) -> None:
        """Notes what became of it, in the row and in its log."""
        moment = now()
        end = outbox.note(row, step, status, moment, self._settings.delivery_give_up_s)
        if parcel is not None:
            entry = {"at": moment.isoformat(), "status": status, "detail": row.detail[:500]}
            row.log = [*row.log, entry][-LOGGED:]
        if isinstance(step, Again) and step.wait_s:
            wait = min(step.wait_s, self._settings.delivery_give_up_s)
            session.get_one(Webhook, row.webhook_id).paused_until = moment + datetime.timedelta(seconds=wait)
        if isinstance(end, Never) and end.disable:
            webhook = session.get_one(Webhook, row.webhook_id)
            webhook.disabled_at, webhook.disabled_why = moment, end.reason

    def tidy(self, session: Session) -> None:
        """Forgets what ended long ago."""
        service.forget(session)
