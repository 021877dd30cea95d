"""Access tokens, and the audit of what was done with them."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Key


class AccessToken(Base):
    """A token by its SHA-256; the token itself is nowhere. Rows stay for good, so that the audit can name them.

    ``used_at`` is the last use, noted once a minute at most. ``worker`` is the name of the only worker that may use it,
    where it is bound to one.
    """

    __tablename__ = "access_tokens"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime.datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[datetime.datetime | None]
    revoked_at: Mapped[datetime.datetime | None]
    used_at: Mapped[datetime.datetime | None]
    worker: Mapped[str | None] = mapped_column(String(200), index=True)


class AuditEntry(Base):
    """One change: who made it, from where, and what it was about. Written in the change's own transaction.

    ``actor`` is the token's name and ``prefix`` its visible beginning. ``subject`` is what was changed: ``job 12``.
    """

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_subject_id", "subject", "id"), Index("ix_audit_prefix_id", "prefix", "id"))

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    at: Mapped[datetime.datetime]
    actor: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str | None] = mapped_column(String(16))
    address: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(100))
    subject: Mapped[str] = mapped_column(String(300))
    detail: Mapped[dict[str, Any]]
