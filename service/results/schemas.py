"""The bodies of the attempt, case, artifact and table endpoints."""

from __future__ import annotations

import datetime
from typing import Any

from service.schemas import Output
from service.states import AttemptState, Origin
from worker.messages import Cause, FailureClass, Outcome, Verdict


class ProcessOutput(Output):
    """One pytest process of an attempt."""

    number: int
    reason: str
    started_at: datetime.datetime
    ended_at: datetime.datetime | None
    exit_code: int | None
    signal: int | None
    collected: int | None
    reported: int | None
    finished: bool | None
    detail: str


class ArtifactOutput(Output):
    """A file of an attempt; its bytes are at ``/api/v1/artifacts/{id}``."""

    id: int
    name: str
    size: int
    sha256: str


class AttemptOutput(Output):
    """One execution of a cell. ``deciding`` says whether it is the one that counts; ``usage`` is what its tests took of
    their GPUs: the most memory in bytes, and how busy each was.

    ``origin`` is ``imported`` where the results were made elsewhere: then there is no ``worker``, ``environment`` says
    what the sender told, and ``claimed_at`` is when the report came in. ``tree`` is git's object id of what is tested,
    with the probe.
    """

    id: int
    cell: int
    number: int
    worker: str | None
    origin: Origin = Origin.RUN
    tree: str
    state: AttemptState
    verdict: Verdict | None
    cause: Cause | None
    detail: str
    deciding: bool
    claimed_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    counts: dict[str, int]
    collected: int
    environment: dict[str, Any] | None
    usage: dict[str, Any] | None = None
    comparison_key: str | None
    running_case: str | None
    log_tail: str
    processes: list[ProcessOutput]
    artifacts: list[ArtifactOutput]


class CaseOutput(Output):
    """One observation of a case."""

    id: int
    process: int
    node_id: str
    occurrence: int
    outcome: Outcome
    last: bool
    failure_class: FailureClass | None
    duration_s: float
    message: str
    traceback: str
    properties: dict[str, Any]
    evidence: dict[str, Any] | None
    cleaned: bool


class TableRow(Output):
    """One row of a table, made from stored attempts.

    ``result`` reads like ``18 failed, 9 passed``; ``skip_reasons`` maps reasons to how many cases gave them; ``flaky``
    says that earlier attempts of the cell disagree on a case; ``selection`` says what of the suite was run, where that
    is not the whole, ``run`` which of the cell's repetitions it is; ``digest`` is the SHA-256 over what the row says
    of the attempt's cases; ``origin`` is ``imported`` where they were made elsewhere.
    """

    cell: int
    attempt: int | None
    tree: str
    runtime: str
    lightning: str | None
    suite: str
    selection: str | None = None
    run: int = 1
    result: str
    verdict: Verdict | None
    counts: dict[str, int]
    failure_classes: dict[str, int]
    skip_reasons: dict[str, int]
    duration_s: float | None
    gpu: str | None
    flaky: bool
    attempts: int
    digest: str | None
    origin: Origin = Origin.RUN


class TableOutput(Output):
    """A job's table. ``suites`` and ``lightnings`` name what varies: a column stands only where there are several.
    ``detail`` is the job's: why it has no rows, say.
    """

    job: int
    repository: str
    state: str
    suites: list[str]
    lightnings: list[str]
    rows: list[TableRow]
    detail: str | None = None
