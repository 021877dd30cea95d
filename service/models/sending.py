"""What is sent to other servers: statuses of commits to forges, events to webhooks. The outbox of both."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.forges import Forge
from service.models.base import Base, Key, words
from service.models.job import Job
from service.models.repository import Repository
from service.states import CommitState, SendState


class ForgeLink(Base):
    """Where a repository's commits get their statuses. ``credential`` is a token, or names one: ``env:``, ``file:``.

    ``project`` is the repository's name at the forge. Nothing is sent before ``paused_until``, as the forge asked.
    """

    __tablename__ = "forge_links"

    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"), primary_key=True)
    forge: Mapped[Forge] = mapped_column(words(Forge))
    api_url: Mapped[str] = mapped_column(String(2000))
    project: Mapped[str] = mapped_column(String(400))
    credential: Mapped[str] = mapped_column(Text)
    paused_until: Mapped[datetime.datetime | None]

    repository: Mapped[Repository] = relationship(lazy="raise")


class Sending:
    """The columns of a row that is to be sent.

    ``target`` names the receiver; one call to it is made at a time. The row is due at ``due_at`` while it is
    ``waiting``, and was first due at ``since``. Whoever sends it holds a claim, which lapses by itself when a service
    dies. ``status`` and ``detail`` are of the last try.
    """

    target: Mapped[str] = mapped_column(String(40))
    state: Mapped[SendState] = mapped_column(words(SendState))
    tries: Mapped[int] = mapped_column(default=0)
    since: Mapped[datetime.datetime]
    due_at: Mapped[datetime.datetime]
    claim: Mapped[str | None] = mapped_column(String(32))
    claimed_until: Mapped[datetime.datetime | None]
    status: Mapped[int | None]
    detail: Mapped[str] = mapped_column(Text, default="")
    sent_at: Mapped[datetime.datetime | None]


class CommitStatus(Sending, Base):
    """What the forge is to show for a commit under a context: one row, whose latest wish is sent.

    ``revision`` counts the wishes, so that a wish that came while an earlier one was on its way is sent too. ``posts``
    counts what the forge took, and ``shown`` is the last of it, where that is certain. The newest job that speaks of
    commit and context owns the row.
    """

    __tablename__ = "commit_statuses"
    __table_args__ = (
        UniqueConstraint("repository_id", "commit", "context"),
        Index(None, "state", "due_at"),
        Index(None, "target", "claimed_until"),
        Index(None, "changed_at", "id"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"))
    commit: Mapped[str] = mapped_column(String(64))
    context: Mapped[str] = mapped_column(String(200))
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    wanted: Mapped[CommitState] = mapped_column(words(CommitState))
    text: Mapped[str] = mapped_column(String(140))
    revision: Mapped[int] = mapped_column(default=1)
    posts: Mapped[int] = mapped_column(default=0)
    shown: Mapped[str | None] = mapped_column(String(240))
    changed_at: Mapped[datetime.datetime]

    repository: Mapped[Repository] = relationship(lazy="raise")


class Webhook(Base):
    """A URL that is told of events, of one repository or of all.

    ``secret`` signs; ``old_secret`` signs too until ``old_until``. Both are kept as they are: an HMAC needs them.
    """

    __tablename__ = "webhooks"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    url: Mapped[str] = mapped_column(String(2000))
    events: Mapped[list[Any]]
    repository_id: Mapped[int | None] = mapped_column(ForeignKey("repositories.id"), index=True)
    secret: Mapped[str] = mapped_column(String(200))
    old_secret: Mapped[str | None] = mapped_column(String(200))
    old_until: Mapped[datetime.datetime | None]
    paused_until: Mapped[datetime.datetime | None]
    disabled_at: Mapped[datetime.datetime | None]
    disabled_why: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime.datetime]

    repository: Mapped[Repository | None] = relationship(lazy="raise")


class WebhookDelivery(Sending, Base):
    """An event on its way to a webhook. ``message`` stays its id however often it is sent; ``log`` has the tries."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index(None, "state", "due_at"),
        Index(None, "target", "claimed_until"),
        Index(None, "webhook_id", "id"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    message: Mapped[str] = mapped_column(String(64), unique=True)
    event: Mapped[str] = mapped_column(String(40))
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"), index=True)
    payload: Mapped[dict[str, Any]]
    log: Mapped[list[Any]] = mapped_column(JSON, default=list)
    created_at: Mapped[datetime.datetime]

    webhook: Mapped[Webhook] = relationship(lazy="raise")
    job: Mapped[Job] = relationship(lazy="raise")
