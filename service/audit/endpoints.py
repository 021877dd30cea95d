"""``/api/v1/audit``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from service.audit import views
from service.audit.schemas import AuditOutput
from service.dependencies import DatabaseDep, is_admin
from service.schemas import Id, Page

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], dependencies=[Depends(is_admin)])


@router.get("")
def list_entries(
    database: DatabaseDep,
    before: Annotated[Id | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    subject: Annotated[str | None, Query(max_length=300, pattern="^[^\0]*$", examples=["job 12"])] = None,
    prefix: Annotated[str | None, Query(max_length=16, pattern="^[^\0]*$", examples=["rb_Ab3dE5gH"])] = None,
) -> Page[AuditOutput]:
    """The latest changes, newest first: of everything, of one subject, or by one token."""
    with database.read() as session:
        return views.list_entries(session, before, limit, subject=subject, prefix=prefix)
