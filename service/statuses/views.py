"""What people see of forges and statuses."""

from __future__ import annotations

import datetime

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session, joinedload

from service import credentials
from service.errors import NotFound
from service.models import CommitStatus, ForgeLink, Repository
from service.schemas import Page
from service.states import SendState
from service.statuses.schemas import ForgeOutput, StatusOutput

CURSOR = r"^[0-9]{1,18}-[0-9]{1,16}$"
"""Where a page ended: a status's number, and the microsecond of its change as the page showed it."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def list_statuses(
    session: Session, repository: str | None = None, before: str | None = None, limit: int = 50
) -> Page[StatusOutput]:
    """Statuses, the latest changed first; with ``before``, those behind a page's ``CURSOR``.

    The cursor keeps its moment: the status there may change meanwhile, and would lead back to the beginning.
    """
    statement = (
        select(CommitStatus)
        .options(joinedload(CommitStatus.repository))
        .order_by(CommitStatus.changed_at.desc(), CommitStatus.id.desc())
        .limit(limit + 1)
    )
    if repository is not None:
        statement = statement.join(Repository).where(Repository.name == repository)
    if before is not None:
        number, moment = (int(part) for part in before.split("-"))
        edge = (_EPOCH + datetime.timedelta(microseconds=moment), number)
        statement = statement.where(tuple_(CommitStatus.changed_at, CommitStatus.id) < edge)
    rows = session.scalars(statement).all()
    page = rows[:limit]
    return Page(items=[_output(row) for row in page], next=_behind(page[-1]) if len(rows) > limit else None)


def _behind(row: CommitStatus) -> str:
    return f"before={row.id}-{(row.changed_at - _EPOCH) // datetime.timedelta(microseconds=1)}"


def get_status(session: Session, status_id: int) -> StatusOutput:
    """One status.

    Raises:
        NotFound: there is none of this number.
    """
    row = session.scalar(
        select(CommitStatus).where(CommitStatus.id == status_id).options(joinedload(CommitStatus.repository))
    )
    if row is None:
        raise NotFound(f"there is no status {status_id}")
    return _output(row)


def forge_of(link: ForgeLink) -> ForgeOutput:
    """A repository's forge, without its credential."""
    return ForgeOutput(
        forge=link.forge, api_url=link.api_url, project=link.project, credential=credentials.shown(link.credential)
    )


def forges(session: Session) -> dict[int, ForgeOutput]:
    """The forges by their repositories' numbers."""
    return {link.repository_id: forge_of(link) for link in session.scalars(select(ForgeLink))}


def _output(row: CommitStatus) -> StatusOutput:
    return StatusOutput(
        id=row.id,
        repository=row.repository.name,
        commit=row.commit,
        context=row.context,
        job=row.job_id,
        wanted=row.wanted,
        text=row.text,
        state=row.state,
        tries=row.tries,
        posts=row.posts,
        status=row.status,
        detail=row.detail,
        changed_at=row.changed_at,
        sent_at=row.sent_at,
        next_try_at=row.due_at if row.state is SendState.WAITING else None,
    )
