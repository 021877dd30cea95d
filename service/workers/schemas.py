"""The bodies of the worker listing."""

from __future__ import annotations

import datetime
from typing import Any

from service.schemas import Output


class WorkerOutput(Output):
    """A worker, what it can serve, and whether it was heard from lately."""

    id: int
    name: str
    host: str
    capabilities: dict[str, Any]
    registered_at: datetime.datetime
    seen_at: datetime.datetime
    live: bool
