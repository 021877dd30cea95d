"""``/api/v1/workers``, and a worker's own first calls: enroll, register, claim."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response, status

from service.access.schemas import NewToken
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_admin, is_enrolling, is_worker, signed_in
from service.workers import enrolment, reaper, service, views
from service.workers.schemas import EnrolmentInput, WorkerOutput
from worker.messages import Assignment, Claim, Enrolled, Enrolment, Heartbeat, Registered, Registration

router = APIRouter(prefix="/api/v1", tags=["workers"])


@router.get("/workers", dependencies=[Depends(signed_in)])
def list_all(database: DatabaseDep, settings: SettingsDep) -> list[WorkerOutput]:
    """Every worker, the one heard from last first."""
    with database.read() as session:
        return views.list_workers(session, settings)


@router.post("/workers/enrolments", dependencies=[Depends(is_admin)], status_code=status.HTTP_201_CREATED)
def enroll(body: EnrolmentInput, database: DatabaseDep, caller: CallerDep, response: Response) -> NewToken:
    """Makes an enrolment token, told this once: a worker of this name exchanges it for a token of its own."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        made = enrolment.create(session, body, caller.name)
        told = {"worker": body.worker, "prefix": made.prefix, "minutes": body.minutes}
        audit.note(session, caller, "worker.enrolment", f"token {made.id}", **told)
        return made


@router.post("/worker/enroll", dependencies=[Depends(is_enrolling)])
def exchange(
    body: Enrolment, database: DatabaseDep, caller: CallerDep, settings: SettingsDep, response: Response
) -> Enrolled:
    """Exchanges an enrolment token for the worker's own. Both are told to nobody else."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        enrolled, held = enrolment.exchange(session, caller, body)
    reaper.lose_all(database, held, settings, enrolment.REVOKED)
    return enrolled


@router.post("/worker/register", dependencies=[Depends(is_worker)])
def register(body: Registration, database: DatabaseDep, settings: SettingsDep, caller: CallerDep) -> Registered:
    """A worker's first word. What an earlier start of it was running is lost at once."""
    with database.write() as session:
        registered, left = service.register(session, body, settings, caller)
    reaper.lose_all(database, left, settings)
    return registered


@router.post("/worker/heartbeat", dependencies=[Depends(is_worker)], status_code=204)
def heartbeat(body: Heartbeat, database: DatabaseDep, caller: CallerDep) -> None:
    """A worker's sign of life, and how its devices are where they have changed."""
    with database.write() as session:
        service.heartbeat(session, body, caller)


@router.post("/worker/claim", dependencies=[Depends(is_worker)], response_model=Assignment)
def claim(
    body: Claim, database: DatabaseDep, settings: SettingsDep, caller: CallerDep, response: Response
) -> Assignment | Response:
    """Asks for one cell: a lease on it, or 204 when nothing fits. A private repository's credential comes along."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        granted = service.claim(session, body, settings, caller)
    return granted or Response(status_code=204)
