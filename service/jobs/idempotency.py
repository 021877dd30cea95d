"""Remembers which job the `Idempotency-Key` of a submission or an import made."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Select, delete, exists, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.access.scopes import Caller
from service.clock import now
from service.errors import IdempotencyConflict
from service.models import IdempotencyKey, Job
from service.schemas import Input
from service.settings import Settings


def digest(body: Input, content: str = "") -> str:
    """The SHA-256 of what a submission means, with the digest of the bytes that came with it; how its JSON is written
    does not count."""
    return hashlib.sha256((body.model_dump_json(exclude={"dry_run"}) + content).encode()).hexdigest()


@dataclass(frozen=True)
class Key:
    """A key as it came: whose it is, its word, and the digest of what came with it."""

    caller: Caller
    word: str
    digest: str

    @property
    def row(self) -> Select[IdempotencyKey]:
        """Asks for its row."""
        return select(IdempotencyKey).where(IdempotencyKey.caller == self.caller.key, IdempotencyKey.key == self.word)


def find(session: Session, key: Key) -> int | None:
    """The job that the key made before, or nothing.

    Raises:
        IdempotencyConflict: it came with another submission.
    """
    known = session.scalar(key.row.where(IdempotencyKey.expires_at > now()))
    return _checked(known, key).job_id if known is not None else None


def once(session: Session, key: Key | None, settings: Settings, make: Callable[[], Job]) -> tuple[bool, int]:
    """Whether ``make`` made the job, and its number; it is not asked where the same submission was first, while this
    one was planned.

    Raises:
        IdempotencyConflict: the key came with another submission.
    """
    kept = _keep(session, key, settings) if key is not None else None
    if kept is not None and kept.job_id is not None:
        return False, kept.job_id
    job = make()
    if kept is not None:
        kept.job_id = job.id
        session.flush()
    return True, job.id


def _keep(session: Session, key: Key, settings: Settings) -> IdempotencyKey:
    """The key's row: a new one, whose job is still to be made, or that of the same submission which was first.

    Who comes second waits here until the first has committed.
    """
    moment = now()
    session.execute(
        delete(IdempotencyKey).where(
            IdempotencyKey.caller == key.caller.key,
            IdempotencyKey.key == key.word,
            IdempotencyKey.expires_at <= moment,
        )
    )
    until = moment + datetime.timedelta(seconds=settings.idempotency_s)
    row = IdempotencyKey(caller=key.caller.key, key=key.word, body_digest=key.digest, expires_at=until)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return _checked(session.scalars(key.row).one(), key)
    return row


def _checked(known: IdempotencyKey, key: Key) -> IdempotencyKey:
    if known.body_digest != key.digest:
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
