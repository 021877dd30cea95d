"""Repositories, what opens them, their trees, and the probes put on them."""

from __future__ import annotations

import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from service.models.base import Base, Key, words
from service.states import CredentialKind


class Repository(Base):
    """A registered git URL with a short name; only registered ones are ever checked out.

    ``served_at`` is when a cell of it was last handed out, so that repositories take turns. One that is removed while
    it has jobs stays with ``removed_at``: its evidence can be read, and nothing of it runs.
    """

    __tablename__ = "repositories"

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    url: Mapped[str] = mapped_column(String(2000))
    created_at: Mapped[datetime.datetime]
    served_at: Mapped[datetime.datetime | None]
    removed_at: Mapped[datetime.datetime | None]


class RepositoryCredential(Base):
    """What opens a private repository. ``credential`` is it, or names it: ``env:``, ``file:``.

    ``known_hosts`` are lines as in OpenSSH's file, by which the host of an SSH address is known.
    """

    __tablename__ = "repository_credentials"

    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"), primary_key=True)
    kind: Mapped[CredentialKind] = mapped_column(words(CredentialKind))
    user: Mapped[str] = mapped_column(String(200))
    credential: Mapped[str] = mapped_column(Text)
    known_hosts: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[datetime.datetime]

    repository: Mapped[Repository] = relationship(lazy="raise")


class Probe(Base):
    """A patch that is never committed, kept by its SHA-256 and exactly as it was sent."""

    __tablename__ = "probes"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime.datetime]


class Tree(Base):
    """A commit, plus an optional probe. ``digest`` is git's object id of the tree that results."""

    __tablename__ = "trees"
    __table_args__ = (
        UniqueConstraint("repository_id", "commit", "probe_digest"),
        # Databases hold two NULLs to differ, so the tree without a probe needs an index of its own.
        Index(
            "uq_trees_plain",
            "repository_id",
            "commit",
            unique=True,
            sqlite_where=text("probe_digest IS NULL"),
            postgresql_where=text("probe_digest IS NULL"),
        ),
    )

    id: Mapped[int] = mapped_column(Key, primary_key=True)
    repository_id: Mapped[int] = mapped_column(ForeignKey("repositories.id"))
    commit: Mapped[str] = mapped_column(String(64))
    probe_digest: Mapped[str | None] = mapped_column(ForeignKey("probes.digest"))
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime.datetime]

    repository: Mapped[Repository] = relationship(lazy="raise")
    probe: Mapped[Probe | None] = relationship(lazy="raise")
