"""``/api/v1/jobs`` and ``/api/v1/cells``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response, status
from fastapi.responses import JSONResponse, StreamingResponse

from service import etags
from service.access.gate import Gate
from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, IdempotencyKey, SettingsDep, signed_in
from service.jobs import idempotency, planning, service, stream, views
from service.jobs.schemas import CancelOutput, CellOutput, JobInput, JobOutput, PlanOutput, RerunInput
from service.repositories import service as repositories
from service.repositories.mirrors import mirror_of
from service.results import table
from service.results import views as results
from service.results.failed import failed_of
from service.results.schemas import TableOutput
from service.schemas import Id, Page
from service.workers.service import HEARTBEATS_A_LEASE

router = APIRouter(prefix="/api/v1", tags=["jobs"], dependencies=[Depends(signed_in)])

UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "What `If-None-Match` names is the newest."}}
TEXTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {media: {"schema": {"type": "string"}} for media in ("text/markdown", "text/csv")}}
}
Limit = Annotated[int, Query(ge=1, le=500)]


@router.post("/jobs", status_code=status.HTTP_201_CREATED, responses={200: {"model": PlanOutput}})
def submit(
    body: JobInput,
    database: DatabaseDep,
    settings: SettingsDep,
    caller: CallerDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobOutput | PlanOutput:
    """Submits a commit plus a matrix. ``dry_run`` answers the cells with 200 and stores nothing."""
    # git may take its time: nothing of the database is held meanwhile.
    key = idempotency.Key(caller, idempotency_key, idempotency.digest(body)) if idempotency_key else None
    with database.read() as session:
        if key is not None and not body.dry_run:
            known = idempotency.find(session, key)
            if known is not None:
                return views.get_job(session, known)
        repository = repositories.find(session, body.repository)
        failed = failed_of(session, body.only_failed_of, repository.id) if body.only_failed_of is not None else None
    plan = planning.plan(body, mirror_of(database, settings, repository.id, repository.url), settings, failed)
    if body.dry_run:
        response.status_code = status.HTTP_200_OK
        return plan.output()
    with database.write() as session:
        made, job = idempotency.once(session, key, settings, lambda: service.create(session, repository.id, body, plan))
        if made:
            trees = [tree.name for tree in plan.trees]
            detail = {"repository": body.repository, "trees": trees[:20], "cells": len(plan.cells)}
            audit.note(session, caller, "job.submit", f"job {job}", **detail)
        return views.get_job(session, job)


@router.get("/jobs")
def list_jobs(
    database: DatabaseDep, before: Annotated[Id | None, Query()] = None, limit: Limit = 50
) -> Page[JobOutput]:
    """The latest jobs, newest first."""
    with database.read() as session:
        return views.list_jobs(session, before, limit)


@router.get("/jobs/{job}", response_model=JobOutput, responses=UNCHANGED)
def get_job(job: Id, request: Request, database: DatabaseDep, response: Response) -> JobOutput | Response:
    """One job."""
    with database.read() as session:
        # The revision is read first: a tag may be older than what it comes with, and never newer.
        tag = etags.of_job(job, views.revision(session, job), "job")
        response.headers.update(etags.fresh(tag))
        return etags.unchanged(request, tag) or views.get_job(session, job)


@router.get("/jobs/{job}/cells", response_model=list[CellOutput], responses=UNCHANGED)
def list_cells(job: Id, request: Request, database: DatabaseDep, response: Response) -> list[CellOutput] | Response:
    """A job's cells, in the order of its matrix."""
    with database.read() as session:
        tag = etags.of_job(job, views.revision(session, job), "cells")
        response.headers.update(etags.fresh(tag))
        return etags.unchanged(request, tag) or views.list_cells(session, job)


@router.get("/cells/{cell}")
def get_cell(cell: Id, database: DatabaseDep) -> CellOutput:
    """One cell."""
    with database.read() as session:
        return views.get_cell(session, cell)


@router.get("/jobs/{job}/table", response_model=TableOutput, responses={**TEXTS, **UNCHANGED})
def get_table(
    job: Id,
    request: Request,
    database: DatabaseDep,
    format: Literal["json", "markdown", "csv"] = "json",  # noqa: A002 -- the query's name
) -> Response:
    """A job's table, as JSON, Markdown or CSV."""
    with database.read() as session:
        tag = etags.of_job(job, views.revision(session, job), f"table-{format}")
        same = etags.unchanged(request, tag)
        if same is not None:
            return same
        found = results.job_table(session, job)
    headers = etags.fresh(tag)
    if format == "markdown":
        return Response(table.markdown(found), media_type="text/markdown", headers=headers)
    if format == "csv":
        return Response(table.text_csv(found), media_type="text/csv", headers=headers)
    return JSONResponse(found.model_dump(mode="json"), headers=headers)


@router.get("/jobs/{job}/stream", response_class=StreamingResponse)
def get_stream(job: Id, request: Request, database: DatabaseDep, caller: CallerDep) -> StreamingResponse:
    """A job's live stream of server-sent events: a snapshot, then changes, then the end."""
    with database.read() as session:
        views.get_job(session, job)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx buffers an answer unless told not to
    gate: Gate = request.app.state.gate
    text = stream.follow(database, job, request, lambda: gate.holds(caller))
    return StreamingResponse(text, media_type="text/event-stream", headers=headers)


@router.post("/jobs/{job}/cancel")
def cancel(job: Id, database: DatabaseDep, settings: SettingsDep, caller: CallerDep) -> CancelOutput:
    """Ends what waits, and has the workers stop what runs when they speak next."""
    with database.write() as session:
        service.cancel(session, job)
        audit.note(session, caller, "job.cancel", f"job {job}")
        session.flush()
        told = views.get_job(session, job).model_dump()
    return CancelOutput(**told, told_within_s=settings.lease_s / HEARTBEATS_A_LEASE)


@router.post("/jobs/{job}/rerun")
def rerun(job: Id, body: RerunInput, database: DatabaseDep, caller: CallerDep) -> JobOutput:
    """Queues cells again: those named, or all that ended without passing."""
    with database.write() as session:
        service.rerun(session, job, body.cells)
        audit.note(session, caller, "job.rerun", f"job {job}", cells=body.cells and body.cells[:100])
        session.flush()
        return views.get_job(session, job)
