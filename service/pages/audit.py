"""The page of the audit: who changed what, the newest first."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from service.audit import views
from service.dependencies import ReadSession, is_admin
from service.pages.render import page
from service.pages.route import PageRoute
from service.schemas import MOST_ID

router = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(is_admin)])
A_PAGE = 100


@router.get("/audit")
def audit(
    request: Request,
    session: ReadSession,
    before: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
    subject: Annotated[str, Query(max_length=300, pattern="^[^\0]*$")] = "",
    prefix: Annotated[str, Query(max_length=16, pattern="^[^\0]*$")] = "",
) -> Response:
    """The latest changes: of everything, of one subject, or by one token."""
    found = views.list_entries(session, before, A_PAGE, subject=subject or None, prefix=prefix or None)
    chosen = {key: value for key, value in {"subject": subject, "prefix": prefix}.items() if value}
    return page(request, "audit.html", entries=found, chosen=chosen, query=urlencode(chosen), first=before is None)
