"""The outbox: rows that wait to be sent. Claims them one by one, and notes what became of each."""

from __future__ import annotations

import datetime
import random
import secrets
from typing import TypeVar

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from service.models import CommitStatus, WebhookDelivery
from service.outgoing.retry import Again, Never, Step, Taken, next_due
from service.states import SendState

Row = TypeVar("Row", CommitStatus, WebhookDelivery)

CLAIM_S = 90
"""How long a claim holds. A call is over well before, so nobody else sends the row meanwhile."""


def due(model: type[Row], now: datetime.datetime, ready: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    """What a row must be to be sent now. ``ready`` holds where its target has not asked to be left alone."""
    busy = select(model.target).where(model.claimed_until > now)
    return [
        model.state == SendState.WAITING,
        model.due_at <= now,
        or_(model.claimed_until.is_(None), model.claimed_until <= now),
        model.target.not_in(busy),
        ready,
    ]


def any_due(session: Session, model: type[Row], now: datetime.datetime, ready: ColumnElement[bool]) -> bool:
    """Whether there is something to send. Looked up without a lock, since mostly there is nothing."""
    return session.scalar(select(model.id).where(*due(model, now, ready)).limit(1)) is not None


def claim(session: Session, model: type[Row], now: datetime.datetime, ready: ColumnElement[bool]) -> Row | None:
    """The row that is due longest, now claimed; no other service gets it until the claim lapses or is given back."""
    row: Row | None = session.scalar(
        select(model)
        .where(*due(model, now, ready))
        .order_by(model.due_at, model.id)
        .limit(1)
        .with_for_update(of=model, skip_locked=True)
    )
    if row is not None:
        row.claim, row.claimed_until = secrets.token_hex(8), now + datetime.timedelta(seconds=CLAIM_S)
    return row


def held(session: Session, model: type[Row], row_id: int, claim: str) -> Row | None:
    """The row, locked, if it is still claimed so."""
    found: Row | None = session.scalar(
        select(model).where(model.id == row_id, model.claim == claim).with_for_update(of=model)
    )
    return found


def release(row: CommitStatus | WebhookDelivery) -> None:
    """Gives a claim back."""
    row.claim, row.claimed_until = None, None


def ask(row: CommitStatus | WebhookDelivery, now: datetime.datetime) -> None:
    """Has the row sent, from the beginning."""
    row.state, row.tries, row.since, row.due_at, row.detail = SendState.WAITING, 0, now, now, ""


def note(
    row: CommitStatus | WebhookDelivery, step: Step, status: int | None, now: datetime.datetime, give_up_s: float
) -> Step:
    """Notes what became of a try, and gives the claim back. Returns what it comes to: the last try gives up."""
    release(row)
    row.tries += 1
    row.status = status
    if isinstance(step, Again):
        when = next_due(step, row.tries, row.since, now, give_up_s, random.uniform)
        if isinstance(when, datetime.datetime):
            row.due_at = when
        else:
            step = when
    row.detail = step.reason[:2000].replace("\0", "�")
    if isinstance(step, Taken):
        row.state, row.sent_at = SendState.DELIVERED, now
    elif isinstance(step, Never):
        row.state = SendState.GAVE_UP
    return step
