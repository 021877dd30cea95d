"""The page of deliveries, and the two forms about hooks: deliver again, and approve a fork's job."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, ReadSession, signed_in
from service.hooks import service, views
from service.hooks.endpoints import PlannerDep
from service.pages.render import page, root
from service.pages.route import PageRoute
from service.schemas import Id

router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(signed_in)])

DELIVERIES_A_PAGE = 50


@router.get("/hooks")
def deliveries(request: Request, session: ReadSession, before: Annotated[Id | None, Query()] = None) -> Response:
    """The latest deliveries, or those before one."""
    found = views.list_deliveries(session, before, DELIVERIES_A_PAGE)
    return page(request, "hooks.html", deliveries=found, first=before is None)


@router.post("/hooks/deliveries/{delivery}/redeliver")
def redeliver(
    request: Request, delivery: Id, database: DatabaseDep, caller: CallerDep, planner: PlannerDep
) -> Response:
    """Takes the form, and leads to the job."""
    with database.write() as session:
        job = service.redeliver(session, delivery).job_id
        audit.note(session, caller, "hook.redeliver", f"delivery {delivery}")
    planner.wake()
    return RedirectResponse(f"{root(request)}/jobs/{job}" if job else f"{root(request)}/hooks", 303)


@router.post("/jobs/{job}/approve")
def approve(request: Request, job: Id, database: DatabaseDep, caller: CallerDep, planner: PlannerDep) -> Response:
    """Takes the form, and leads back to the job."""
    with database.write() as session:
        service.approve(session, job, caller.name)
        audit.note(session, caller, "job.approve", f"job {job}", by=caller.name)
    planner.wake()
    return RedirectResponse(f"{root(request)}/jobs/{job}", 303)
