"""The page of what others were told: statuses of commits, events to webhooks; and how to tell them again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from service.audit import service as audit
from service.dependencies import CallerDep, DatabaseDep, ReadSession, signed_in
from service.pages.render import HEADERS, page, root
from service.pages.route import PageRoute
from service.schemas import Id
from service.statuses import service as statuses
from service.statuses import views as status_views
from service.webhooks import service as webhooks
from service.webhooks import views as webhook_views

router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(signed_in)])

A_PAGE = 30


@router.get("/notifications")
def show(
    request: Request,
    session: ReadSession,
    caller: CallerDep,
    statuses_before: Annotated[str | None, Query(pattern=status_views.CURSOR)] = None,
    events_before: Annotated[Id | None, Query()] = None,
) -> Response:
    """The latest statuses and events, or those before one."""
    return page(
        request,
        "notifications.html",
        statuses=status_views.list_statuses(session, before=statuses_before, limit=A_PAGE),
        events=webhook_views.list_deliveries(session, caller, before=events_before, limit=A_PAGE),
        webhooks=webhook_views.list_webhooks(session, caller),
        latest=statuses_before is None and events_before is None,
    )


@router.post("/notifications/statuses/{number}/redeliver")
def redeliver_status(request: Request, number: Id, database: DatabaseDep, caller: CallerDep) -> Response:
    """Tells a forge again."""
    with database.write() as session:
        statuses.resend(session, number)
        audit.note(session, caller, "status.redeliver", f"status {number}")
    return _back(request, f"status-{number}")


@router.post("/notifications/events/{number}/redeliver")
def redeliver_event(request: Request, number: Id, database: DatabaseDep, caller: CallerDep) -> Response:
    """Sends an event again."""
    with database.write() as session:
        webhooks.redeliver(session, number)
        audit.note(session, caller, "webhook.redeliver", f"webhook delivery {number}")
    return _back(request, f"event-{number}")


def _back(request: Request, row: str) -> Response:
    return RedirectResponse(f"{root(request)}/notifications#{row}", 303, headers=dict(HEADERS))
