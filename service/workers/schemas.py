"""The bodies of the worker endpoints that people call."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from pydantic import Field

from service.schemas import Input, Output


class EnrolmentInput(Input):
    """Asks for a token that a worker of this name exchanges for its own, once and within so many minutes."""

    worker: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,80}$", examples=["gpu-3"])]
    minutes: Annotated[int, Field(ge=1, le=10_080)] = 60


class WorkerOutput(Output):
    """A worker, what it can serve, and whether it was heard from lately."""

    id: int
    name: str
    host: str
    capabilities: dict[str, Any]
    registered_at: datetime.datetime
    seen_at: datetime.datetime
    live: bool
