"""What people see of forges and statuses."""

from __future__ import annotations

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session, joinedload

from service import credentials
from service.errors import NotFound
from service.models import CommitStatus, ForgeLink, Repository
from service.schemas import Page
from service.states import SendState
from service.statuses.schemas import ForgeOutput, StatusOutput


def list_statuses(
    session: Session, repository: str | None = None, before: int | None = None, limit: int = 50
) -> Page[StatusOutput]:
    """Statuses, the latest changed first; with ``before``, those changed before that one.

    Raises:
        NotFound: there is no status of the number ``before``.
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
        edge = session.get(CommitStatus, before)
        if edge is None:
            raise NotFound(f"there is no status {before}")
        statement = statement.where(tuple_(CommitStatus.changed_at, CommitStatus.id) < tuple_(edge.changed_at, edge.id))
    rows = session.scalars(statement).all()
    page = rows[:limit]
    return Page(items=[_output(row) for row in page], next=f"before={page[-1].id}" if len(rows) > limit else None)


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
