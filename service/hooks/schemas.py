"""The bodies of the hook endpoints."""

from __future__ import annotations

import datetime
from typing import Annotated

from pydantic import Field

from service.schemas import Input, Output
from service.states import DeliveryState, JobState


class DeliveryOutput(Output):
    """A forge's delivery and what became of it: ``job`` is what it started, ``detail`` says why it did not or why that
    job waits or ended.
    """

    id: int
    provider: str
    delivery: str
    event: str
    repository: str
    state: DeliveryState
    detail: str
    job: int | None
    job_state: JobState | None
    redeliverable: bool
    received_at: datetime.datetime


class HookSecretOutput(Output):
    """A new secret for a repository's hook, shown this once."""

    id: int
    repository: str
    secret: str
    created_at: datetime.datetime


class ApproveInput(Input):
    """Who approves."""

    approved_by: Annotated[str, Field(max_length=200)] | None = None
