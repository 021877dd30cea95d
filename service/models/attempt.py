"""Attempts, their processes, their cases and their artifacts."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models.base import Base, Key, words
from service.models.job import Cell
from service.models.worker import Worker
from service.states import AttemptState, Origin
from worker.messages import Cause, FailureClass, Outcome, Verdict


class Attempt(Base):
    """One execution of a whole cell by one worker, under a lease. Never changed once ended.

    ``token`` fences: who does not know it, or knows that of an ended attempt, writes nothing. ``last_seq`` is the
    number of the last batch that is stored. ``counts`` maps outcomes to how many cases have them as their last
    observation. ``usage`` is what its tests took of their devices, as ``messages.UsageEvent`` describes it. ``digest``,
    made at the end, is the SHA-256 over what was observed (``results.evidence``). What was imported has no worker.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("cell_id", "number"),
        Index(None, "state", "lease_expires_at"),
        # One attempt decides a cell: the database holds to it.
        Index(
            "uq_attempts_deciding",
            "cell_id",
            unique=True,
            sqlite_where=text("deciding"),
            postgresql_where=text("deciding"),
        ),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cells.id"))
    number: Mapped[int]
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("workers.id"), index=True)
    token: Mapped[str] = mapped_column(String(64))
    state: Mapped[AttemptState] = mapped_column(words(AttemptState))
    verdict: Mapped[Verdict | None] = mapped_column(words(Verdict))
    cause: Mapped[Cause | None] = mapped_column(words(Cause))
    detail: Mapped[str] = mapped_column(Text, default="")
    claimed_at: Mapped[datetime.datetime]
    started_at: Mapped[datetime.datetime | None]
    ended_at: Mapped[datetime.datetime | None]
    lease_expires_at: Mapped[datetime.datetime]
    deciding: Mapped[bool] = mapped_column(default=False)
    stop_requested: Mapped[bool] = mapped_column(default=False)
    last_seq: Mapped[int] = mapped_column(default=0)
    counts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    collected: Mapped[int] = mapped_column(default=0)
    environment: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    usage: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    comparison_key: Mapped[str | None] = mapped_column(String(400))
    digest: Mapped[str | None] = mapped_column(String(64))
    running_case: Mapped[str | None] = mapped_column(Text)
    log_tail: Mapped[str] = mapped_column(Text, default="")

    cell: Mapped[Cell] = relationship(lazy="raise")
    worker: Mapped[Worker | None] = relationship(lazy="raise")

    @property
    def origin(self) -> Origin:
        """Where its results come from."""
        return Origin.IMPORTED if self.worker_id is None else Origin.RUN


class Process(Base):
    """One pytest process of an attempt, numbered from 1."""

    __tablename__ = "processes"
    __table_args__ = (UniqueConstraint("attempt_id", "number"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"))
    number: Mapped[int]
    reason: Mapped[str] = mapped_column(Text, default="")
    started_at: Mapped[datetime.datetime]
    ended_at: Mapped[datetime.datetime | None]
    exit_code: Mapped[int | None]
    signal: Mapped[int | None]
    collected: Mapped[int | None]
    reported: Mapped[int | None]
    finished: Mapped[bool | None]
    detail: Mapped[str] = mapped_column(Text, default="")


class Case(Base):
    """One observation of a case: a pytest node id, its occurrence among equal ids, in one process.

    ``node_digest`` is the SHA-256 of the node id, which may be megabytes long. ``last`` marks the observation that
    counts; earlier ones are kept.
    """

    __tablename__ = "cases"
    __table_args__ = (
        UniqueConstraint("attempt_id", "process", "node_digest", "occurrence"),
        Index("ix_cases_page", "attempt_id", "last", "outcome", "id"),
        Index("ix_cases_history", "node_digest", "id"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"))
    process: Mapped[int]
    node_id: Mapped[str] = mapped_column(Text)
    node_digest: Mapped[str] = mapped_column(String(64))
    occurrence: Mapped[int]
    outcome: Mapped[Outcome] = mapped_column(words(Outcome))
    last: Mapped[bool] = mapped_column(default=True)
    failure_class: Mapped[FailureClass | None] = mapped_column(words(FailureClass))
    duration_s: Mapped[float]
    message: Mapped[str] = mapped_column(Text)
    traceback: Mapped[str] = mapped_column(Text)
    properties: Mapped[dict[str, Any]]
    evidence: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    cleaned: Mapped[bool]


class Artifact(Base):
    """A file of an attempt. Its bytes lie in the data directory under their SHA-256."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("attempt_id", "name"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"))
    name: Mapped[str] = mapped_column(String(200))
    size: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime.datetime]
