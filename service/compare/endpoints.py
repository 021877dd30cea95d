"""``/api/v1/compare`` and ``/api/v1/history``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from service.compare import history, markdown, names, views
from service.compare.comparison import Change
from service.compare.cursor import PATTERN, Cursor
from service.compare.schemas import CompareOutput, HistoryEntry
from service.dependencies import DatabaseDep, SettingsDep, signed_in
from service.schemas import Id, Page

router = APIRouter(prefix="/api/v1", tags=["compare"], dependencies=[Depends(signed_in)])

RepositoryName = Annotated[str | None, Query(max_length=100)]
TreeName = Annotated[str | None, Query(max_length=140, examples=["bb3c0b8+probe:1f2e3d"])]
After = Annotated[str | None, Query(max_length=400, pattern=PATTERN)]
# A letter may take twelve characters of the address, and the HTTP server reads 64 KiB of it.
NodeId = Annotated[str, Query(min_length=1, max_length=5000, examples=["tests/test_fit.py::test_parity[adam]"])]


@router.get("/compare", response_model=CompareOutput)
def compare(
    database: DatabaseDep,
    settings: SettingsDep,
    repository: RepositoryName = None,
    base: TreeName = None,
    head: TreeName = None,
    job: Annotated[Id | None, Query()] = None,
    change: Change | None = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    format: Literal["json", "markdown"] = "json",  # noqa: A002 -- the query's name
) -> Response:
    """Two trees, case by case over runtimes and suites: by a commit's beginning, a branch, a tag or the shown name. A
    tree that is not named is the job's first, or its second. Lists the cases of one change, or all but those that pass
    still.
    """
    question = names.pinned(database, settings, views.Question(repository, base, head, job))
    listing = views.Listing(change, Cursor.parse(after) if after else None, limit)
    with database.read() as session:
        found = views.compare(session, question, listing)
    if format == "markdown":
        return Response(markdown.markdown(found), media_type="text/markdown")
    return JSONResponse(found.model_dump(mode="json"))


@router.get("/history")
def get_history(
    database: DatabaseDep,
    repository: Annotated[str, Query(max_length=100)],
    node_id: NodeId,
    suite: Annotated[str | None, Query(max_length=100)] = None,
    before: Annotated[Id | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[HistoryEntry]:
    """What deciding attempts observed of one case, over trees and runtimes, newest first."""
    with database.read() as session:
        return history.history(session, repository, node_id, suite, before, limit)
