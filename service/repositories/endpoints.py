"""``/api/v1/repositories``."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Depends, status

from service.dependencies import DatabaseDep, SettingsDep, signed_in
from service.models import Repository
from service.repositories import service
from service.repositories.schemas import RepositoryInput, RepositoryOutput
from service.statuses import service as statuses
from service.statuses import views
from service.statuses.schemas import ForgeOutput

router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])


@router.post("", status_code=status.HTTP_201_CREATED)
def register(body: RepositoryInput, database: DatabaseDep, settings: SettingsDep) -> RepositoryOutput:
    """Registers a git URL under a short name. Once more with a forge gives the repository this forge."""
    with database.write() as session:
        repository = service.register(session, body)
        if body.forge is not None:
            statuses.link(session, repository, body.forge, settings)
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
