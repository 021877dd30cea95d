"""`/api/v1/imports`: results that were made elsewhere."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, status
from starlette.concurrency import run_in_threadpool

from service.access.scopes import Caller
from service.audit import service as audit
from service.database import Database
from service.dependencies import CallerDep, DatabaseDep, IdempotencyKey, SettingsDep, signed_in
from service.errors import TooLarge
from service.imports import service
from service.imports.rows import rows_of
from service.imports.schemas import ImportInput
from service.jobs import idempotency, views
from service.jobs.schemas import JobOutput
from service.repositories import service as repositories
from service.repositories.mirrors import mirror_of
from service.results import artifacts
from service.settings import Settings

router = APIRouter(prefix="/api/v1", tags=["imports"], dependencies=[Depends(signed_in)])

EXAMPLE = """\
<testsuites><testsuite name="pytest" tests="2" failures="1" time="0.5">
<testcase classname="tests.test_parity.TestFit" name="test_bits[cpu]" time="0.4"/>
<testcase classname="tests.test_parity" name="test_report" time="0.1">
<failure message="assert 1 == 2">tests/test_parity.py:9: AssertionError</failure></testcase>
</testsuite></testsuites>
"""
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A JUnit report: the XML itself.",
        "content": {
            "application/xml": {
                "schema": {"type": "string"},
                "examples": {"pytest": {"summary": "What pytest writes", "value": EXAMPLE}},
            }
        },
    }
}


@router.post("/imports", status_code=status.HTTP_201_CREATED, openapi_extra=BODY)
async def import_report(
    request: Request,
    about: Annotated[ImportInput, Query()],
    database: DatabaseDep,
    settings: SettingsDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> JobOutput:
    """Stores a JUnit report of a run elsewhere as a job of one cell, which has ended. It is shown, tabled and exported
    like others, and everywhere said to be imported.
    """
    content = await _body(request, settings.artifact_cap_bytes)
    meaning = idempotency.digest(about, hashlib.sha256(content).hexdigest())
    key = idempotency.Key(caller, idempotency_key, meaning) if idempotency_key else None
    return await run_in_threadpool(_import, about, content, database, settings, caller, key)


async def _body(request: Request, cap: int) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > cap:
            raise TooLarge(f"the report is larger than {cap} bytes; import it in parts, or without its captured output")
    return bytes(content)


def _import(
    about: ImportInput,
    content: bytes,
    database: Database,
    settings: Settings,
    caller: Caller,
    key: idempotency.Key | None,
) -> JobOutput:
    with database.read() as session:
        known = idempotency.find(session, key) if key is not None else None
        if known is not None:
            return views.get_job(session, known)
        repository = repositories.find(session, about.repository)
    # git and the report may take their time: nothing of the database is held meanwhile.
    reading = service.plan(about, content, mirror_of(database, settings, repository.id, repository.url))
    stored = artifacts.store(settings.data_dir, content)
    rows = rows_of(database.engine.dialect, reading.cases)
    with database.write() as session:
        made, job = idempotency.once(
            session, key, settings, lambda: service.create(session, repository.id, about, reading, rows, stored)
        )
        if made:
            detail = {"repository": about.repository, "commit": reading.commit, "report": stored.sha256}
            audit.note(session, caller, "job.import", f"job {job}", **detail)
        return views.get_job(session, job)
