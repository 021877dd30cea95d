"""``/api/v1/repositories``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, status

from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, signed_in
from service.repositories import service
from service.repositories.schemas import RepositoryInput, RepositoryOutput

router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])


@router.post("", status_code=status.HTTP_201_CREATED)
def register(body: RepositoryInput, database: DatabaseDep, caller: CallerDep) -> RepositoryOutput:
    """Registers a git URL under a short name."""
    with database.write() as session:
        repository = service.register(session, body)
        audit.note(session, caller, "repository.register", f"repository {repository.name}", url=repository.url)
        return RepositoryOutput.model_validate(repository)


@router.get("")
def list_all(database: DatabaseDep) -> list[RepositoryOutput]:
    """Every registered repository, by name."""
    with database.read() as session:
        return [RepositoryOutput.model_validate(repository) for repository in service.list_all(session)]
