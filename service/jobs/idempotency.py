"""Remembers which job the `Idempotency-Key` of a submission or an import made."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable

from sqlalchemy import delete, exists, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.clock import now
from service.errors import IdempotencyConflict
from service.models import IdempotencyKey, Job
from service.schemas import Input
from service.settings import Settings


def digest(body: Input, content: str = "") -> str:
    """The SHA-256 of what a submission means, with the digest of the bytes that came with it; how its JSON is written
    does not count."""
    return hashlib.sha256((body.model_dump_json(exclude={"dry_run"}) + content).encode()).hexdigest()


def find(session: Session, key: str, body_digest: str) -> int | None:
    """The job that the key made before, or nothing.

    Raises:
        IdempotencyConflict: it came with another submission.
    """
    known = session.scalar(select(IdempotencyKey).where(IdempotencyKey.key == key, IdempotencyKey.expires_at > now()))
    return _checked(known, body_digest).job_id if known is not None else None


def once(session: Session, key: str | None, body_digest: str, settings: Settings, make: Callable[[], Job]) -> int:
    """The job that ``make`` gives; that of the same submission where it was first, while this one was planned.

    Raises:
        IdempotencyConflict: the key came with another submission.
    """
    kept = keep(session, key, body_digest, settings) if key else None
    if kept is not None and kept.job_id is not None:
        return kept.job_id
    job = make()
    if kept is not None:
        kept.job_id = job.id
        session.flush()
    return job.id


def keep(session: Session, key: str, body_digest: str, settings: Settings) -> IdempotencyKey:
    """The key's row: a new one, whose job is still to be made, or that of the same submission which was first.

    Who comes second waits here until the first has committed.

    Raises:
        IdempotencyConflict: the key came with another submission.
    """
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.key == key, IdempotencyKey.expires_at <= now()))
    until = now() + datetime.timedelta(seconds=settings.idempotency_s)
    row = IdempotencyKey(key=key, body_digest=body_digest, expires_at=until)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return _checked(session.scalars(select(IdempotencyKey).where(IdempotencyKey.key == key)).one(), body_digest)
    return row


def _checked(known: IdempotencyKey, body_digest: str) -> IdempotencyKey:
    if known.body_digest != body_digest:
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
