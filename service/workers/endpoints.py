"""``/api/v1/workers``, and a worker's own first two calls: register and claim."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from service.dependencies import ReadSession, SettingsDep, WriteSession, is_worker, signed_in
from service.workers import service, views
from service.workers.schemas import WorkerOutput
from worker.messages import Assignment, Claim, Heartbeat, Registered, Registration

router = APIRouter(prefix="/api/v1", tags=["workers"])


@router.get("/workers", dependencies=[Depends(signed_in)])
def list_all(session: ReadSession, settings: SettingsDep) -> list[WorkerOutput]:
    """Every worker, the one heard from last first."""
    return views.list_workers(session, settings)


@router.post("/worker/register", dependencies=[Depends(is_worker)])
def register(body: Registration, session: WriteSession, settings: SettingsDep) -> Registered:
    """A worker's first word."""
    return service.register(session, body, settings)


@router.post("/worker/heartbeat", dependencies=[Depends(is_worker)], status_code=204)
def heartbeat(body: Heartbeat, session: WriteSession) -> None:
    """An idle worker's sign of life."""
    service.seen(session, body.worker, body.boot)


@router.post("/worker/claim", dependencies=[Depends(is_worker)], response_model=Assignment)
def claim(body: Claim, session: WriteSession, settings: SettingsDep) -> Assignment | Response:
    """Asks for one cell: a lease on it, or 204 when nothing fits."""
    return service.claim(session, body, settings) or Response(status_code=204)
