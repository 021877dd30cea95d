"""``/api/v1/repositories``."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends, status
from sqlalchemy.orm import Session

from service.access.gate import require
from service.access.scopes import Scope
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin, signed_in
from service.models import Repository
from service.repositories import credentials, removal, service
from service.repositories.mirrors import mirror_of
from service.repositories.schemas import (
    CredentialInput,
    CredentialOutput,
    RepositoryInput,
    RepositoryOutput,
    RepositoryRemoved,
)
from service.statuses import service as statuses
from service.statuses import views

everybody = APIRouter(prefix="/api/v1/repositories", tags=["repositories"], dependencies=[Depends(signed_in)])

admins = APIRouter(
    prefix="/api/v1/repositories/{name}/credential", tags=["repositories"], dependencies=[Depends(is_admin)]
)


removals = APIRouter(prefix="/api/v1/repositories/{name}", tags=["repositories"], dependencies=[Depends(is_admin)])


@everybody.post("", status_code=status.HTTP_201_CREATED)
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
        return _outputs(session, [repository])[0]


@everybody.get("")
def list_all(database: DatabaseDep) -> list[RepositoryOutput]:
    """Every registered repository, by name."""
    with database.read() as session:
        return _outputs(session, service.list_all(session))


@removals.delete("")
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
    removal.forget_mirror(mirror_of(database, settings, number, url))
    return RepositoryRemoved(name=name, jobs=kept)


@admins.put("")
def put_credential(
    name: str, body: CredentialInput, database: DatabaseDep, settings: SettingsDep, caller: CallerDep
) -> CredentialOutput:
    """Gives a private repository its credential, in place of the one before. No answer ever shows it."""
    with database.write() as session:
        repository = service.find(session, name)
        row = credentials.put(session, repository, body, settings)
        shown = credentials.output(row, repository.url)
        told = {"kind": shown.kind, "credential": shown.credential, "host": shown.host}
        audit.note(session, caller, "credential.set", f"repository {name}", **told)
        return shown


@admins.delete("", status_code=status.HTTP_204_NO_CONTENT)
def delete_credential(name: str, database: DatabaseDep, caller: CallerDep) -> None:
    """Forgets a repository's credential: from the next lease on, no worker gets it."""
    with database.write() as session:
        credentials.remove(session, service.find(session, name))
        audit.note(session, caller, "credential.remove", f"repository {name}")


def _outputs(session: Session, repositories: Sequence[Repository]) -> list[RepositoryOutput]:
    forges, shown = views.forges(session), credentials.outputs(session)
    return [
        RepositoryOutput(
            id=repository.id,
            name=repository.name,
            url=repository.url,
            created_at=repository.created_at,
            forge=forges.get(repository.id),
            credential=shown.get(repository.id),
        )
        for repository in repositories
    ]


router = APIRouter()
router.include_router(everybody)
router.include_router(admins)
router.include_router(removals)
