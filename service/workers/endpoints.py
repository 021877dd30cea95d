"""``/api/v1/workers``, and a worker's own first two calls: register and claim."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from service.dependencies import DatabaseDep, SettingsDep, is_worker, signed_in
from service.workers import reaper, service, views
from service.workers.schemas import WorkerOutput
from worker.messages import Assignment, Claim, Heartbeat, Registered, Registration

router = APIRouter(prefix="/api/v1", tags=["workers"])


@router.get("/workers", dependencies=[Depends(signed_in)])
def list_all(database: DatabaseDep, settings: SettingsDep) -> list[WorkerOutput]:
    """Every worker, the one heard from last first."""
    with database.read() as session:
        return views.list_workers(session, settings)


@router.post("/worker/register", dependencies=[Depends(is_worker)])
def register(body: Registration, database: DatabaseDep, settings: SettingsDep) -> Registered:
    """A worker's first word. What an earlier start of it was running is lost at once."""
    with database.write() as session:
        registered, left = service.register(session, body, settings)
    reaper.lose_all(database, left, settings)
    return registered


@router.post("/worker/heartbeat", dependencies=[Depends(is_worker)], status_code=204)
def heartbeat(body: Heartbeat, database: DatabaseDep) -> None:
    """A worker's sign of life, and how its devices are where they have changed."""
    with database.write() as session:
        service.heartbeat(session, body)


@router.post("/worker/claim", dependencies=[Depends(is_worker)], response_model=Assignment)
def claim(body: Claim, database: DatabaseDep, settings: SettingsDep, response: Response) -> Assignment | Response:
    """Asks for one cell: a lease on it, or 204 when nothing fits. A private repository's credential comes along."""
    response.headers["Cache-Control"] = "no-store"
    with database.write() as session:
        granted = service.claim(session, body, settings)
    return granted or Response(status_code=204)
