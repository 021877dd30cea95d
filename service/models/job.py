"""Jobs and their cells."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, true
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models.base import Base, Key, words
from service.models.repository import Repository, Tree
from service.states import CellState, JobState, Origin
from worker.messages import Verdict


class Job(Base):
    """One request, or one imported report. ``revision`` counts its changes: a live view's event id. ``planned`` is
    whether it has its cells; ``detail`` says why it waits or ended where its cells do not,
    and of an import what in its report could not be taken as it stands.
    """

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "state"),)

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"), index=True)
    state: Mapped[JobState] = mapped_column(words(JobState))
    origin: Mapped[Origin] = mapped_column(words(Origin), default=Origin.RUN, server_default=Origin.RUN.value)
    revision: Mapped[int] = mapped_column(default=1)
    priority: Mapped[int] = mapped_column(default=0)
    label: Mapped[str | None] = mapped_column(String(200))
    work_package: Mapped[str | None] = mapped_column(String(100))
    requested_by: Mapped[str | None] = mapped_column(String(200))
    reason: Mapped[str | None] = mapped_column(String(1000))
    request: Mapped[dict[str, Any]]
    planned: Mapped[bool] = mapped_column(default=True, server_default=true())
    detail: Mapped[str | None] = mapped_column(Text)
    cancel_requested_at: Mapped[datetime.datetime | None]
    created_at: Mapped[datetime.datetime]
    started_at: Mapped[datetime.datetime | None]
    ended_at: Mapped[datetime.datetime | None]

    repository: Mapped[Repository] = relationship(lazy="raise")


class Cell(Base):
    """One tree x runtime x suite of a job. ``suite_spec``, ``install`` and ``failure_rules`` are the tree's own
    declarations, as they stood at the commit when the job was planned. ``reserved_worker_id`` is who keeps devices free
    for it, while it waits for several.
    """

    __tablename__ = "cells"
    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        # The queue: what waits, by kind, in the order in which it is handed out.
        Index("ix_cells_queue", "state", "kind", "priority", "queued_at"),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id"))
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"))
    tree_id: Mapped[int] = mapped_column(ForeignKey("trees.id"), index=True)
    position: Mapped[int]
    name: Mapped[str] = mapped_column(String(400))
    runtime: Mapped[str] = mapped_column(String(200))
    suite: Mapped[str] = mapped_column(String(100))
    kind: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    suite_spec: Mapped[dict[str, Any]]
    install: Mapped[list[Any]]
    failure_rules: Mapped[list[Any]]
    state: Mapped[CellState] = mapped_column(words(CellState))
    revision: Mapped[int] = mapped_column(default=1)
    verdict: Mapped[Verdict | None] = mapped_column(words(Verdict))
    attempts_since_queued: Mapped[int] = mapped_column(default=0)
    queued_at: Mapped[datetime.datetime]
    ended_at: Mapped[datetime.datetime | None]
    waiting_reason: Mapped[str | None] = mapped_column(Text)
    reserved_worker_id: Mapped[int | None] = mapped_column(ForeignKey("workers.id"))

    job: Mapped[Job] = relationship(lazy="raise")
    tree: Mapped[Tree] = relationship(lazy="raise")
