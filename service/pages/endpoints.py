"""The pages: latest jobs, a job's matrix, a cell's cases and log, a comparison, a case's history, the workers."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from service.compare import comparison
from service.compare import history as histories
from service.compare import views as comparisons
from service.compare.comparison import MEANING, Change
from service.compare.cursor import Cursor
from service.compare.endpoints import After, RepositoryName, TreeName
from service.compare.markdown import alone
from service.compare.names import pinned
from service.dependencies import DatabaseDep, ReadSession, SettingsDep, signed_in
from service.errors import NotFound
from service.jobs import views as jobs
from service.pages import audit, log, matrix, notifications, sign_in
from service.pages.render import STATIC, page
from service.pages.route import PageRoute
from service.results import views as results
from service.results.schemas import AttemptOutput
from service.schemas import MOST_ID, Id
from service.workers import views as workers
from worker.messages import Outcome, RuntimeSpec

router = APIRouter(route_class=PageRoute, include_in_schema=False)
inside = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(signed_in)])

JOBS_A_PAGE = 30
CASES_A_PAGE = 100
CASE = "the number of an observed case, which the links named history beside the cases of a cell or comparison have"
KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@inside.get("/")
def latest(request: Request, session: ReadSession, before: Annotated[Id | None, Query()] = None) -> Response:
    """The latest jobs, or those before one."""
    found = jobs.list_jobs(session, before, JOBS_A_PAGE)
    return page(request, "jobs.html", jobs=found, first=before is None)


@inside.get("/jobs/{job_id}")
def job(request: Request, session: ReadSession, job_id: Id) -> Response:
    """A job: who and why, the result so far, the matrix."""
    found = jobs.get_job(session, job_id)
    cells = jobs.list_cells(session, job_id)
    collected = sum(cell.collected for cell in cells)
    return page(request, "job.html", job=found, cells=cells, matrix=matrix.arrange(cells), collected=collected)


@inside.get("/cells/{cell_id}")
def cell(
    request: Request,
    session: ReadSession,
    cell_id: Id,
    *,
    attempt: Id | None = None,
    outcome: Outcome | None = None,
    last: bool = True,
    after: Annotated[int, Query(ge=0, le=MOST_ID)] = 0,
) -> Response:
    """A cell: its attempts, and of the one shown its cases, log and environment."""
    found = jobs.get_cell(session, cell_id)
    attempts = results.list_attempts(session, cell_id)
    shown = _shown(attempts, attempt if attempt is not None else found.attempt)
    if shown is None and attempt is not None:
        raise NotFound(f"Cell {cell_id} has no attempt {attempt}.")
    values: dict[str, Any] = {"cell": found, "attempts": attempts, "attempt": shown, "outcome": outcome, "last": last}
    values["runtime"] = RuntimeSpec.parse(found.runtime)
    if shown is not None:
        values["cases"] = results.list_cases(
            session, shown.id, outcome=outcome, last=last, after=after, limit=CASES_A_PAGE
        )
        values["filter"] = _filter(shown.id, outcome, last=last)
        values["log"] = log.window(shown.log_tail)
        values["paged"] = after > 0
    return page(request, "cell.html", **values)


def _shown(attempts: list[AttemptOutput], wanted: int | None) -> AttemptOutput | None:
    return next((one for one in attempts if one.id == wanted), None)


def _filter(attempt: int, outcome: Outcome | None, *, last: bool) -> str:
    chosen = {"attempt": str(attempt), "outcome": outcome or "", "last": "" if last else "false"}
    return urlencode({key: value for key, value in chosen.items() if value})


@inside.get("/compare")
def compare(
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
    repository: RepositoryName = None,
    base: TreeName = None,
    head: TreeName = None,
    job: Annotated[Id | None, Query()] = None,
    change: Change | None = None,
    after: After = None,
) -> Response:
    """Two trees, case by case. Its links name them by their commits, and so show the same when a branch has moved."""
    question = pinned(database, settings, comparisons.Question(repository, base, head, job))
    listing = comparisons.Listing(change, Cursor.parse(after) if after else None, CASES_A_PAGE)
    with database.read() as session:
        found = comparisons.compare(session, question, listing)
        trees = jobs.get_job(session, job).trees if job is not None else []
    asked = {"repository": found.repository, "job": job, "base": found.base.name, "head": found.head.name}
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    conclusion = comparison.conclusion(broke=found.broke, complete=found.complete)
    values: dict[str, Any] = {
        "found": found,
        "change": change,
        "query": query,
        "trees": trees,
        "conclusion": conclusion,
        "alone": alone(found),
    }
    return page(request, "compare.html", **values, meaning=MEANING, paged=after is not None)


@inside.get("/history")
def history(
    request: Request,
    session: ReadSession,
    case: Annotated[Id, Query(description=CASE)],
    before: Annotated[Id | None, Query()] = None,
) -> Response:
    """Over trees, the case that an observation is of."""
    repository, suite, node_id = histories.named(session, case)
    found = histories.history(session, repository, node_id, suite, before, CASES_A_PAGE)
    query = urlencode({"repository": repository, "suite": suite, "node_id": node_id})
    values: dict[str, Any] = {"repository": repository, "node_id": node_id, "suite": suite, "entries": found}
    return page(request, "history.html", **values, query=query, case=case, first=before is None)


@inside.get("/workers")
def worker_list(request: Request, session: ReadSession, settings: SettingsDep) -> Response:
    """The workers: who lives, and what they can serve."""
    return page(request, "workers.html", workers=workers.list_workers(session, settings))


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A static file. Its address carries its digest, so a browser may keep it for good."""
    if name not in STATIC:
        raise NotFound(f"There is no file {name}.")
    body, digest = STATIC[name]
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "ETag": f'"{digest}"'}
    return Response(
        body, media_type=KINDS[name.rpartition(".")[2]], headers={**headers, "X-Content-Type-Options": "nosniff"}
    )


router.include_router(inside)
router.include_router(audit.router)
router.include_router(notifications.router)
router.include_router(sign_in.router)
