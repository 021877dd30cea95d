"""Writes the audit: who changed what, in the transaction of the change itself."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from service.access.scopes import Caller
from service.clock import now
from service.models import AuditEntry

KEY = "audited"


def note(session: Session, caller: Caller, action: str, subject: str, **detail: Any) -> None:
    """Notes a change. ``subject`` is a noun and what tells it apart, like ``job 12``."""
    session.info[KEY] = True
    session.add(
        AuditEntry(
            at=now(),
            actor=caller.name,
            prefix=caller.prefix,
            address=caller.address[:64],
            action=action[:100],
            subject=subject[:300],
            detail=detail,
        )
    )


def ensure(session: Session, caller: Caller, method: str, path: str) -> None:
    """Notes a change that its endpoint did not name, by its method and path, so that none is ever missing."""
    if KEY not in session.info:
        note(session, caller, method.lower(), path)
