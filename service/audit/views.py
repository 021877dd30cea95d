"""What people see of the audit."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit.schemas import AuditOutput
from service.models import AuditEntry
from service.schemas import Page


def list_entries(
    session: Session, before: int | None, limit: int, *, subject: str | None = None, prefix: str | None = None
) -> Page[AuditOutput]:
    """The latest changes, newest first: of everything, of one subject, of one token."""
    statement = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    if before is not None:
        statement = statement.where(AuditEntry.id < before)
    if subject is not None:
        statement = statement.where(AuditEntry.subject == subject)
    if prefix is not None:
        statement = statement.where(AuditEntry.prefix == prefix)
    rows = session.scalars(statement).all()
    items = [AuditOutput.model_validate(row) for row in rows[:limit]]
    return Page(items=items, next=f"before={items[-1].id}" if len(rows) > limit else None)
