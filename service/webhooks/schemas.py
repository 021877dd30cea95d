"""The bodies of the webhook endpoints, and what a webhook is sent."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated

from pydantic import AfterValidator, Field

from service.jobs.schemas import JobOutput
from service.results import table
from service.schemas import Input, Output
from service.states import JobState, Origin, SendState
from service.webhooks import signature
from worker.messages import Outcome


class Event(enum.StrEnum):
    """What a webhook can be told of.

    A job has started when its first cell was claimed, and again when an ended job is run again.
    """

    STARTED = "job.started"
    ENDED = "job.ended"


def _secret(value: str) -> str:
    signature.key_of(value)
    return value


Secret = Annotated[str, Field(max_length=200), AfterValidator(_secret)]


class WebhookInput(Input):
    """A URL to tell of events: of one repository's jobs, or without ``repository`` of all.

    Without ``secret``, one is made. ``https`` is needed unless the operator named the host as one of their own.
    """

    url: Annotated[str, Field(min_length=1, max_length=2000, examples=["https://ci.example.org/replaybench"])]
    events: Annotated[tuple[Event, ...], Field(min_length=1, max_length=10)] = tuple(Event)
    repository: Annotated[str, Field(max_length=100)] | None = None
    secret: Secret | None = Field(None, repr=False)


class WebhookOutput(Output):
    """A webhook. ``old_secret_until`` is how long the secret before this one signs too."""

    id: int
    url: str
    events: list[Event]
    repository: str | None
    created_at: datetime.datetime
    old_secret_until: datetime.datetime | None
    disabled_at: datetime.datetime | None
    disabled_why: str


class WebhookMade(WebhookOutput):
    """A webhook with its secret, which is told this once."""

    secret: str


class RotationInput(Input):
    """A new secret, made if none is given. The old one signs too for ``overlap_s`` seconds."""

    secret: Secret | None = None
    overlap_s: Annotated[int, Field(ge=0, le=30 * 86_400)] = 86_400


class TryOutput(Output):
    """One try. ``status`` is the receiver's answer; without one, ``detail`` says why there was none."""

    at: datetime.datetime
    status: int | None
    detail: str


class DeliveryOutput(Output):
    """An event on its way to a webhook, and what became of it. ``message`` is its ``webhook-id``."""

    id: int
    webhook: int
    url: str
    message: str
    event: Event
    job: int
    state: SendState
    tries: int
    status: int | None
    detail: str
    log: list[TryOutput]
    created_at: datetime.datetime
    sent_at: datetime.datetime | None
    next_try_at: datetime.datetime | None


class JobData(Output):
    """What an event tells of its job. ``url`` is absolute where the operator set REPLAYBENCH_PUBLIC_URL.

    ``cells`` counts them by state and, where ended, by verdict; ``counts`` counts cases by outcome; ``origin`` is
    ``imported`` where no worker of ours ran them.
    """

    job: int
    url: str
    repository: str
    state: JobState
    origin: Origin
    result: str
    trees: list[str]
    cells: dict[str, int]
    counts: dict[str, int]
    label: str | None
    work_package: str | None
    requested_by: str | None
    reason: str | None
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None

    @classmethod
    def of(cls, job: JobOutput) -> JobData:
        """What is told of a job."""
        result = table.result({outcome: job.counts.get(outcome, 0) for outcome in Outcome}, None)
        return cls(job=job.id, result=result, **job.model_dump(include=set(cls.model_fields) - {"job", "result"}))


class EventBody(Output):
    """What is posted to a webhook."""

    type: Event
    timestamp: datetime.datetime
    data: JobData
