"""``/api/v1/repositories``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, status

from service.dependencies import ReadSession, WriteSession, signed_in
from service.repositories import service
from service.repositories.schemas import RepositoryInput, RepositoryOutput

router = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])


@router.post("", status_code=status.HTTP_201_CREATED)
def register(body: RepositoryInput, session: WriteSession) -> RepositoryOutput:
    """Registers a git URL under a short name."""
    repository = service.register(session, body)
    session.flush()
    return RepositoryOutput.model_validate(repository)


@router.get("")
def list_all(session: ReadSession) -> list[RepositoryOutput]:
    """Every registered repository, by name."""
    return [RepositoryOutput.model_validate(repository) for repository in service.list_all(session)]
