"""``/api/v1/statuses``, and a repository's forge."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, status

from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin, signed_in
from service.repositories import service as repositories
from service.schemas import Id, Page
from service.statuses import service, views
from service.statuses.schemas import ForgeInput, ForgeOutput, StatusOutput

inside = APIRouter(prefix="/api/v1", tags=["statuses"], dependencies=[Depends(signed_in)])

forge = APIRouter(prefix="/api/v1/repositories/{name}/forge", tags=["statuses"], dependencies=[Depends(is_admin)])

Limit = Annotated[int, Query(ge=1, le=500)]


@forge.put("")
def put_forge(
    name: str, body: ForgeInput, database: DatabaseDep, settings: SettingsDep, caller: CallerDep
) -> ForgeOutput:
    """Says where a repository's commits get their statuses, in place of what was said before."""
    with database.write() as session:
        link = service.link(session, repositories.find(session, name), body, settings)
        audit.note(session, caller, "forge.set", f"repository {name}", api_url=link.api_url)
        return views.forge_of(link)


@forge.delete("", status_code=status.HTTP_204_NO_CONTENT)
def delete_forge(name: str, database: DatabaseDep, caller: CallerDep) -> None:
    """Forgets a repository's forge and its credential."""
    with database.write() as session:
        service.unlink(session, repositories.find(session, name))
        audit.note(session, caller, "forge.remove", f"repository {name}")


@inside.get("/statuses")
def list_statuses(
    database: DatabaseDep,
    repository: Annotated[str | None, Query(max_length=100)] = None,
    before: Annotated[str | None, Query(pattern=views.CURSOR)] = None,
    limit: Limit = 50,
) -> Page[StatusOutput]:
    """What forges are told of commits, the latest changed first."""
    with database.read() as session:
        return views.list_statuses(session, repository, before, limit)


@inside.get("/statuses/{number}")
def get_status(number: Id, database: DatabaseDep) -> StatusOutput:
    """One of them."""
    with database.read() as session:
        return views.get_status(session, number)


@inside.post("/statuses/{number}/redeliver")
def redeliver(number: Id, database: DatabaseDep, caller: CallerDep) -> StatusOutput:
    """Tells the forge again."""
    with database.write() as session:
        service.resend(session, number)
        audit.note(session, caller, "status.redeliver", f"status {number}")
        session.flush()
        return views.get_status(session, number)


router = APIRouter()
router.include_router(inside)
router.include_router(forge)
