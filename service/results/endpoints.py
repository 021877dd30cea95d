"""Attempts, cases and artifacts, and what a worker writes to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool

from service.database import Database
from service.dependencies import DatabaseDep, SettingsDep, is_worker, signed_in
from service.errors import NotFound
from service.results import artifacts, ingest, views
from service.results.cleaning import clean
from service.results.schemas import ArtifactOutput, AttemptOutput, CaseOutput
from service.schemas import MOST_ID, Id, Page
from worker.messages import Batch, BatchAnswer, Outcome

router = APIRouter(prefix="/api/v1", tags=["results"], dependencies=[Depends(signed_in)])
worker_router = APIRouter(prefix="/api/v1/worker/attempts", tags=["workers"], dependencies=[Depends(is_worker)])


@router.get("/cells/{cell}/attempts")
def list_attempts(cell: Id, database: DatabaseDep) -> list[AttemptOutput]:
    """A cell's attempts, earliest first."""
    with database.read() as session:
        return views.list_attempts(session, cell)


@router.get("/attempts/{attempt}")
def get_attempt(attempt: Id, database: DatabaseDep) -> AttemptOutput:
    """One attempt."""
    with database.read() as session:
        return views.get_attempt(session, attempt)


@router.get("/attempts/{attempt}/cases")
def list_cases(
    attempt: Id,
    database: DatabaseDep,
    outcome: Outcome | None = None,
    last: bool = True,
    after: Annotated[int, Query(ge=0, le=MOST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Page[CaseOutput]:
    """An attempt's observations, those that count; with ``last=false`` also those that a later one replaced."""
    with database.read() as session:
        return views.list_cases(session, attempt, outcome=outcome, last=last, after=after, limit=limit)


@router.get("/artifacts/{artifact}", response_class=FileResponse)
def get_artifact(artifact: Id, database: DatabaseDep, settings: SettingsDep) -> FileResponse:
    """An artifact's bytes. They came from a tested tree: a browser saves them and never shows them as a page."""
    with database.read() as session:
        found: ArtifactOutput = views.get_artifact(session, artifact)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox", "ETag": f'"{found.sha256}"'}
    media = "text/plain; charset=utf-8" if found.name.endswith((".txt", ".log")) else "application/octet-stream"
    file = artifacts.file_of(settings.data_dir, found.sha256)
    if not file.is_file():
        raise NotFound(f"the bytes of artifact {artifact} are not in the data directory {settings.data_dir} any more")
    return FileResponse(file, media_type=media, headers=headers, filename=found.name)


@worker_router.post("/{attempt}/batches")
def add_batch(
    attempt: Id, body: Annotated[Batch, BeforeValidator(clean)], database: DatabaseDep, settings: SettingsDep
) -> BatchAnswer:
    """Stores a batch of events and renews the lease."""
    with database.write() as session:
        return ingest.ingest(session, attempt, body, settings)


@worker_router.put("/{attempt}/artifacts/{name}", status_code=201)
async def add_artifact(
    attempt: Id,
    name: str,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
    x_lease: Annotated[str, Header()],
) -> Response:
    """Stores an artifact under a lease: 201, or 200 where the same bytes are there already."""
    await run_in_threadpool(_may_keep, database, attempt, x_lease, name)
    stored = await artifacts.receive(settings.data_dir, request.stream(), settings.artifact_cap_bytes)
    new = await run_in_threadpool(_keep, database, attempt, x_lease, name, stored)
    return Response(status_code=201 if new else 200)


def _may_keep(database: Database, attempt: int, token: str, name: str) -> None:
    """Looks before the bytes are taken in; who holds no lease fills no disk."""
    artifacts.check_name(name)
    with database.write() as session:
        ingest.lock(session, attempt, token)


def _keep(database: Database, attempt: Id, token: str, name: str, stored: artifacts.Stored) -> bool:
    with database.write() as session:
        ingest.lock(session, attempt, token)
        return artifacts.keep(session, attempt, name, stored)
