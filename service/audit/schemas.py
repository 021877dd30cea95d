"""The bodies of the audit endpoint."""

from __future__ import annotations

import datetime
from typing import Any

from service.schemas import Output


class AuditOutput(Output):
    """One change: who made it (a token's name and visible prefix), from where, what, and on what."""

    id: int
    at: datetime.datetime
    actor: str
    prefix: str | None
    address: str
    action: str
    subject: str
    detail: dict[str, Any]
