"""Registers repositories and finds them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.clock import now
from service.errors import RepositoryExists, RepositoryUnknown
from service.models import Repository
from service.repositories import git
from service.repositories.schemas import RepositoryInput


def register(session: Session, body: RepositoryInput) -> Repository:
    """A new repository; the same name and URL again is the one that is there, taken up again if it was removed.

    Raises:
        UrlRefused: the URL is of a kind that is never fetched.
        RepositoryExists: the name stands for another URL.
    """
    git.check_url(body.url)
    known = session.scalar(select(Repository).where(Repository.name == body.name))
    if known is None:
        repository = Repository(name=body.name, url=body.url, created_at=now())
        try:
            with session.begin_nested():
                session.add(repository)
        except IntegrityError:  # somebody else was first, between the look and the insert
            known = session.scalar(select(Repository).where(Repository.name == body.name))
        else:
            return repository
    if known is None or known.url != body.url:
        kept = " (removed, and kept for its jobs)" if known and known.removed_at else ""
        raise RepositoryExists(
            f"name {body.name!r} stands for {known.url if known else 'another URL'}{kept}; choose another"
        )
    known.removed_at = None
    return known


def find(session: Session, name: str, *, removed: bool = False) -> Repository:
    """The repository of a name; ``removed``: one that was removed will do, since it is only to be read.

    Raises:
        RepositoryUnknown: there is none.
    """
    repository = session.scalar(select(Repository).where(Repository.name == name))
    if repository is None or (repository.removed_at is not None and not removed):
        raise RepositoryUnknown(
            f"repository {name!r} is not registered; register it with `replaybench repos add {name} URL`"
        )
    return repository


def list_all(session: Session) -> Sequence[Repository]:
    """Every repository that was not removed, by name."""
    return session.scalars(select(Repository).where(Repository.removed_at.is_(None)).order_by(Repository.name)).all()
