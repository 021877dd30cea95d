"""``/api/v1/repositories``."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Depends, status

from service.access.gate import require
from service.access.scopes import Scope
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, signed_in
from service.models import Repository
from service.repositories import service
from service.repositories.schemas import RepositoryInput, RepositoryOutput
from service.statuses import service as statuses
from service.statuses import views
from service.statuses.schemas import ForgeOutput

router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])


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


def _output(repository: Repository, forges: Mapping[int, ForgeOutput]) -> RepositoryOutput:
    return RepositoryOutput(
        id=repository.id,
        name=repository.name,
        url=repository.url,
        created_at=repository.created_at,
        forge=forges.get(repository.id),
    )
