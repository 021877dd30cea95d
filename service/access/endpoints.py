"""``/api/v1/tokens``."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response, status

from service.access import service
from service.access.schemas import NewToken, TokenInput, TokenOutput
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin
from service.schemas import Id
from service.workers import enrolment, reaper

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"], dependencies=[Depends(is_admin)])


@router.post("", status_code=status.HTTP_201_CREATED)
def create(body: TokenInput, database: DatabaseDep, caller: CallerDep, response: Response) -> NewToken:
    """Makes a token. This answer is the only one that shows it."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        made = service.create(session, body, caller.name)
        audit.note(session, caller, "token.create", f"token {made.id}", **service.told(made, body))
        return made


@router.get("")
def list_all(database: DatabaseDep) -> list[TokenOutput]:
    """Every token that was ever made, the newest first."""
    with database.read() as session:
        return [TokenOutput.model_validate(token) for token in service.list_all(session)]


@router.post("/{token}/revoke")
def revoke(token: Id, database: DatabaseDep, caller: CallerDep, settings: SettingsDep) -> TokenOutput:
    """Ends a token for good; twice is the same as once. What workers run that came with it is taken from them."""
    with database.write() as session:
        row, ended = service.revoke(session, token)
        held = enrolment.fence(session, token)
        audit.note(session, caller, "token.revoke", f"token {token}", name=row.name, prefix=row.prefix, again=not ended)
        told = TokenOutput.model_validate(row)
    reaper.lose_all(database, held, settings, enrolment.REVOKED)
    return told
