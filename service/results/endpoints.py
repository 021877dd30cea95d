"""Attempts, cases and artifacts, and what a worker writes to them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool

from service import etags
from service.access.scopes import Caller
from service.database import Database
from service.dependencies import CallerDep, DatabaseDep, SettingsDep, is_worker, signed_in
from service.error_handlers import problem
from service.errors import NotFound, RangeRefused
from service.results import artifacts, export, ingest, ranges, views
from service.results.cleaning import clean
from service.results.schemas import ArtifactOutput, AttemptOutput, CaseOutput
from service.schemas import MOST_ID, Id, Page
from worker.messages import Batch, BatchAnswer, Outcome

router = APIRouter(prefix="/api/v1", tags=["results"], dependencies=[Depends(signed_in)])
worker_router = APIRouter(prefix="/api/v1/worker/attempts", tags=["workers"], dependencies=[Depends(is_worker)])

XML: dict[int | str, dict[str, Any]] = {200: {"content": {"application/xml": {"schema": {"type": "string"}}}}}
ARTIFACT_ANSWERS: dict[int | str, dict[str, Any]] = {
    206: {"description": "The part that `Range` asks for."},
    304: {"description": "What `If-None-Match` names is what is stored."},
    416: {"description": "`Range` asks for what is not there."},
}


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


@router.get("/attempts/{attempt}/junit.xml", response_class=StreamingResponse, responses=XML)
def get_attempt_junit(attempt: Id, database: DatabaseDep) -> StreamingResponse:
    """An attempt's last observations as JUnit XML."""
    return _xml(f"attempt-{attempt}", export.of_attempt(database, attempt))


@router.get("/jobs/{job}/junit.xml", response_class=StreamingResponse, responses=XML)
def get_job_junit(job: Id, database: DatabaseDep) -> StreamingResponse:
    """A job as JUnit XML: a suite for each cell, of the attempt that the table shows."""
    return _xml(f"job-{job}", export.of_job(database, job))


def _xml(name: str, pieces: Iterator[str]) -> StreamingResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}.xml"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces, media_type="application/xml", headers=headers)


@router.get("/artifacts/{artifact}", response_class=FileResponse, responses=ARTIFACT_ANSWERS)
def get_artifact(artifact: Id, request: Request, database: DatabaseDep, settings: SettingsDep) -> Response:
    """An artifact's bytes, whole or a range. They came from a tested tree: a browser saves them and shows no page."""
    with database.read() as session:
        found: ArtifactOutput = views.get_artifact(session, artifact)
    tag, digest = etags.of_bytes(found.sha256), base64.b64encode(bytes.fromhex(found.sha256)).decode()
    checked = {"Repr-Digest": f"sha-256=:{digest}:"}  # RFC 9530: of the whole, also where a range is sent
    same = etags.unchanged(request, tag, **checked)
    if same is not None:
        return same
    file = artifacts.file_of(settings.data_dir, found.sha256)
    if not file.is_file():
        raise NotFound(f"the bytes of artifact {artifact} are not in the data directory {settings.data_dir} any more")
    if not _ranged(request, found.size, tag):
        return _beyond(found.size, artifact)
    media = "text/plain; charset=utf-8" if found.name.endswith((".txt", ".log")) else "application/octet-stream"
    safe = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
    return FileResponse(file, media_type=media, headers={**etags.fresh(tag), **checked, **safe}, filename=found.name)


def _ranged(request: Request, size: int, tag: str) -> bool:
    """Whether the answer has something to send; a `Range` that is to be ignored is taken out of the request."""
    asked = request.headers.get("range")
    if asked is None or request.headers.get("if-range", tag) != tag:
        return True
    kind = ranges.read(asked, size)
    if kind is ranges.Asked.WHOLE:
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
    return kind is not ranges.Asked.NOTHING


def _beyond(size: int, artifact: int) -> Response:
    detail = f"artifact {artifact} has {size} bytes, and Range begins behind them; ask for less"
    answer = problem(RangeRefused.status, RangeRefused.code, RangeRefused.title, detail)
    answer.headers["Content-Range"] = f"bytes */{size}"
    return answer


@worker_router.post("/{attempt}/batches")
def add_batch(
    attempt: Id,
    body: Annotated[Batch, BeforeValidator(clean)],
    database: DatabaseDep,
    settings: SettingsDep,
    caller: CallerDep,
) -> BatchAnswer:
    """Stores a batch of events and renews the lease."""
    with database.write() as session:
        return ingest.ingest(session, attempt, body, settings, caller)


@worker_router.put("/{attempt}/artifacts/{name}", status_code=201)
async def add_artifact(
    attempt: Id,
    name: str,
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
    caller: CallerDep,
    x_lease: Annotated[str, Header()],
) -> Response:
    """Stores an artifact under a lease: 201, or 200 where the same bytes are there already."""
    await run_in_threadpool(_may_keep, database, attempt, x_lease, name, caller)
    stored = await artifacts.receive(settings.data_dir, request.stream(), settings.artifact_cap_bytes)
    new = await run_in_threadpool(_keep, database, attempt, x_lease, name, stored, caller)
    return Response(status_code=201 if new else 200)


def _may_keep(database: Database, attempt: int, token: str, name: str, caller: Caller) -> None:
    """Looks before the bytes are taken in; who holds no lease fills no disk."""
    artifacts.check_name(name)
    with database.write() as session:
        ingest.lock(session, attempt, token, caller)


def _keep(database: Database, attempt: int, token: str, name: str, stored: artifacts.Stored, caller: Caller) -> bool:
    with database.write() as session:
        ingest.lock(session, attempt, token, caller)
        return artifacts.keep(session, attempt, name, stored)
