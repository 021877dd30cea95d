"""Hooks: the secrets that prove a forge, its deliveries, and what started jobs."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models.base import Base, Key, words
from service.models.job import Job
from service.models.repository import Repository
from service.states import DeliveryState


class HookSecret(Base):
    """A secret that a repository's forge signs with. It is kept as it is: an HMAC cannot be checked with a digest."""

    __tablename__ = "hook_secrets"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"), index=True)
    secret: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime.datetime]


class Trigger(Base):
    """What started a job by itself. One event on one commit is there once, however often it is told; one that happened
    again after its job was cancelled is ``trigger`` with ``^2`` and so on.

    ``line`` names what later events replace; ``happened`` is the event as it was read; ``needs_approval`` holds until a
    person approved (``approved_at``).
    """

    __tablename__ = "triggers"
    __table_args__ = (
        UniqueConstraint("repository_id", "commit", "trigger"),
        Index(None, "repository_id", "line"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"))
    commit: Mapped[str] = mapped_column(String(64))
    trigger: Mapped[str] = mapped_column(String(300))
    line: Mapped[str | None] = mapped_column(String(300))
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), unique=True)
    happened: Mapped[dict[str, Any]]
    needs_approval: Mapped[bool] = mapped_column(default=False)
    approved_at: Mapped[datetime.datetime | None]
    approved_by: Mapped[str | None] = mapped_column(String(200))


class Delivery(Base):
    """One delivery of a forge whose signature was right, by the forge's own id. ``heard`` is what it was read as."""

    __tablename__ = "deliveries"
    __table_args__ = (UniqueConstraint("provider", "delivery"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    provider: Mapped[str] = mapped_column(String(16))
    delivery: Mapped[str] = mapped_column(String(200))
    event: Mapped[str] = mapped_column(String(100))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"), index=True)
    state: Mapped[DeliveryState] = mapped_column(words(DeliveryState))
    detail: Mapped[str] = mapped_column(Text, default="")
    heard: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    job_id: Mapped[int | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    received_at: Mapped[datetime.datetime]

    repository: Mapped[Repository] = relationship(lazy="raise")
    job: Mapped[Job | None] = relationship(lazy="raise")
