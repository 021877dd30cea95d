"""Makes tokens, lists them, revokes them, and notes their last use."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from service.access import secret
from service.access.schemas import NewToken, TokenInput, TokenOutput, expiry
from service.access.scopes import Scope
from service.clock import now
from service.errors import NotFound
from service.models import AccessToken


def create(session: Session, body: TokenInput, made_by: str) -> NewToken:
    """A new token. What is stored cannot be turned into it again, so whoever is told of it must keep it."""
    return make(session, body.name, body.scopes, made_by, expiry(body.days))


def make(
    session: Session,
    name: str,
    scopes: Iterable[Scope],
    made_by: str,
    expires_at: datetime.datetime | None,
    worker: str | None = None,
) -> NewToken:
    """A new token of any kind, bound to a worker or not."""
    token = secret.make()
    row = AccessToken(
        name=name,
        prefix=secret.prefix(token),
        digest=secret.digest(token),
        scopes=sorted(set(scopes)),
        created_at=now(),
        created_by=made_by,
        expires_at=expires_at,
        worker=worker,
    )
    session.add(row)
    session.flush()
    return NewToken(**TokenOutput.model_validate(row).model_dump(exclude={"state"}), token=token)


def told(made: NewToken, asked: TokenInput) -> dict[str, Any]:
    """What the audit says of a new token."""
    return {"name": made.name, "prefix": made.prefix, "scopes": made.scopes, "days": asked.days}


def list_all(session: Session) -> Sequence[AccessToken]:
    """Every token that was ever made, the newest first."""
    return session.scalars(select(AccessToken).order_by(AccessToken.id.desc())).all()


def revoke(session: Session, token_id: int) -> tuple[AccessToken, bool]:
    """Ends a token for good, and says whether it was not revoked before. The next call with it is refused.

    Raises:
        NotFound: there is no such token.
    """
    row = session.get(AccessToken, token_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no token {token_id}; `replaybench tokens list` shows them")
    if row.revoked_at is not None:
        return row, False
    row.revoked_at = now()
    return row, True


def note_use(session: Session, token_id: int, moment: datetime.datetime, every_s: int) -> None:
    """Notes a use, unless another call noted one in the same span."""
    before = moment - datetime.timedelta(seconds=every_s)
    session.execute(
        update(AccessToken)
        .where(AccessToken.id == token_id, or_(AccessToken.used_at.is_(None), AccessToken.used_at <= before))
        .values(used_at=moment)
    )
