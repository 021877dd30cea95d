"""``/api/v1/repositories``."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Depends, status

from service.access.gate import require
from service.access.scopes import Scope
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin, signed_in
from service.jobs.planning import mirror_of
from service.models import Repository
from service.repositories import removal, service
from service.repositories.schemas import RepositoryInput, RepositoryOutput, RepositoryRemoved
from service.statuses import service as statuses
from service.statuses import views
from service.statuses.schemas import ForgeOutput

router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])
admin_router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(is_admin)])


@router.post("", status_code=status.HTTP_201_CREATED)
def register(
    body: RepositoryInput, database: DatabaseDep, settings: SettingsDep, caller: CallerDep
) -> RepositoryOutput:
    """Registers a git URL under a short name. Once more with a forge gives the repository this forge.

    A forge brings a credential and an address to send it to, so it asks for the scope ``admin``.
    """
    if body.forge is not None:
        require(caller, Scope.ADMIN)
    with database.write() as session:
        repository = service.register(session, body)
        audit.note(session, caller, "repository.register", f"repository {repository.name}", url=repository.url)
        if body.forge is not None:
            link = statuses.link(session, repository, body.forge, settings)
            audit.note(session, caller, "forge.set", f"repository {repository.name}", api_url=link.api_url)
        session.flush()
        return _output(repository, views.forges(session))


@router.get("")
def list_all(database: DatabaseDep) -> list[RepositoryOutput]:
    """Every registered repository, by name."""
    with database.read() as session:
        forges = views.forges(session)
        return [_output(repository, forges) for repository in service.list_all(session)]


@admin_router.delete("/{name}")
def remove(
    name: str, database: DatabaseDep, settings: SettingsDep, caller: CallerDep, force: bool = False
) -> RepositoryRemoved:
    """Removes a repository, its secrets and its mirror. One with jobs only with ``force``: then what has not ended is
    cancelled, jobs and evidence stay, and nothing new is taken. The same name and URL registered again takes it up.
    """
    with database.write() as session:
        repository = service.find(session, name)
        number, url = repository.id, repository.url
        kept = removal.remove(session, repository, force=force)
        audit.note(session, caller, "repository.remove", f"repository {name}", url=url, jobs=kept)
    if kept:
        removal.cancel_all(database, number, caller)
    removal.forget_mirror(mirror_of(settings, number, url))
    return RepositoryRemoved(name=name, jobs=kept)


def _output(repository: Repository, forges: Mapping[int, ForgeOutput]) -> RepositoryOutput:
    return RepositoryOutput(
        id=repository.id,
        name=repository.name,
        url=repository.url,
        created_at=repository.created_at,
        forge=forges.get(repository.id),
    )
