"""``/api/v1/statuses``, and a repository's forge."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, status

from service.dependencies import DatabaseDep, SettingsDep, signed_in
from service.repositories import service as repositories
from service.schemas import Id, Page
from service.statuses import service, views
from service.statuses.schemas import ForgeInput, ForgeOutput, StatusOutput

router = APIRouter(prefix="/api/v1", tags=["statuses"], dependencies=[Depends(signed_in)])

Limit = Annotated[int, Query(ge=1, le=500)]


@router.put("/repositories/{name}/forge")
def put_forge(name: str, body: ForgeInput, database: DatabaseDep, settings: SettingsDep) -> ForgeOutput:
    """Says where a repository's commits get their statuses, in place of what was said before."""
    with database.write() as session:
        link = service.link(session, repositories.find(session, name), body, settings)
        return views.forge_of(link)


@router.delete("/repositories/{name}/forge", status_code=status.HTTP_204_NO_CONTENT)
def delete_forge(name: str, database: DatabaseDep) -> None:
    """Forgets a repository's forge and its credential."""
    with database.write() as session:
        service.unlink(session, repositories.find(session, name))


@router.get("/statuses")
def list_statuses(
    database: DatabaseDep,
    repository: Annotated[str | None, Query(max_length=100)] = None,
    before: Annotated[Id | None, Query()] = None,
    limit: Limit = 50,
) -> Page[StatusOutput]:
    """What forges are told of commits, the latest changed first."""
    with database.read() as session:
        return views.list_statuses(session, repository, before, limit)


@router.get("/statuses/{number}")
def get_status(number: Id, database: DatabaseDep) -> StatusOutput:
    """One of them."""
    with database.read() as session:
        return views.get_status(session, number)


@router.post("/statuses/{number}/redeliver")
def redeliver(number: Id, database: DatabaseDep) -> StatusOutput:
    """Tells the forge again."""
    with database.write() as session:
        service.resend(session, number)
        session.flush()
        return views.get_status(session, number)
