"""A job's live stream. An event's id is the job's revision; a reader who comes back gets a snapshot, then changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from service.database import Database
from service.jobs import views
from service.jobs.schemas import Snapshot

POLL_S = 0.25
KEEP_ALIVE_S = 15.0
CHECK_S = 5.0
"""How often it is looked whether the reader may still read."""


async def follow(database: Database, job_id: int, request: Request, may_read: Callable[[], bool]) -> AsyncIterator[str]:
    """The stream's text until the job has ended, or the reader is gone or may read no more.

    The revision is looked up a few times a second: one indexed read, the same on both databases, and right whichever
    process made the change.
    """
    since, silent, unchecked, kind = 0, 0.0, 0.0, "snapshot"
    while not await request.is_disconnected():
        change = await run_in_threadpool(_changes, database, job_id, since)
        if change is not None:
            since, silent = change.job.revision, 0.0
            yield _event(kind, change)
            kind = "change"
            if change.job.state.ended:
                yield f"event: end\nid: {since}\ndata: {{}}\n\n"
                return
        elif silent >= KEEP_ALIVE_S:
            silent = 0.0
            yield ": keep-alive\n\n"
        await asyncio.sleep(POLL_S)
        silent, unchecked = silent + POLL_S, unchecked + POLL_S
        if unchecked >= CHECK_S:
            unchecked = 0.0
            if not await run_in_threadpool(may_read):
                return


def _changes(database: Database, job_id: int, since: int) -> Snapshot | None:
    with database.read() as session:
        return views.snapshot(session, job_id, since)


def _event(kind: str, change: Snapshot) -> str:
    return f"event: {kind}\nid: {change.job.revision}\ndata: {change.model_dump_json()}\n\n"
