"""Remembers which job a submission's `Idempotency-Key` made."""

from __future__ import annotations

import datetime
import hashlib

from sqlalchemy import Select, delete, exists, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.access.scopes import Caller
from service.clock import now
from service.errors import IdempotencyConflict
from service.jobs.schemas import JobInput
from service.models import IdempotencyKey
from service.settings import Settings


def digest(body: JobInput) -> str:
    """The SHA-256 of what a submission means; how its JSON is written does not count."""
    return hashlib.sha256(body.model_dump_json(exclude={"dry_run"}).encode()).hexdigest()


def find(session: Session, caller: Caller, key: str, body: JobInput) -> int | None:
    """The job that the key made before, or nothing.

    Raises:
        IdempotencyConflict: it came with another submission.
    """
    known = session.scalar(_row(caller, key).where(IdempotencyKey.expires_at > now()))
    return _checked(known, body).job_id if known is not None else None


def keep(session: Session, caller: Caller, key: str, body: JobInput, settings: Settings) -> IdempotencyKey:
    """The key's row: a new one, whose job is still to be made, or that of the same submission which was first.

    Who comes second waits here until the first has committed.

    Raises:
        IdempotencyConflict: the key came with another submission.
    """
    moment = now()
    session.execute(
        delete(IdempotencyKey).where(
            IdempotencyKey.caller == caller.key, IdempotencyKey.key == key, IdempotencyKey.expires_at <= moment
        )
    )
    until = moment + datetime.timedelta(seconds=settings.idempotency_s)
    row = IdempotencyKey(caller=caller.key, key=key, body_digest=digest(body), expires_at=until)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return _checked(session.scalars(_row(caller, key)).one(), body)
    return row


def _row(caller: Caller, key: str) -> Select[IdempotencyKey]:
    return select(IdempotencyKey).where(IdempotencyKey.caller == caller.key, IdempotencyKey.key == key)


def _checked(known: IdempotencyKey, body: JobInput) -> IdempotencyKey:
    if known.body_digest != digest(body):
        raise IdempotencyConflict(
            f"Idempotency-Key {known.key!r} came with another submission, which made job {known.job_id}; send a new key"
        )
    return known


def any_expired(session: Session) -> bool:
    """Whether a key is out of date."""
    return bool(session.scalar(select(exists().where(IdempotencyKey.expires_at <= now()))))


def forget(session: Session) -> None:
    """Removes the keys that are out of date."""
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.expires_at <= now()))
