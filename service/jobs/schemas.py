"""The bodies of the job and cell endpoints."""

from __future__ import annotations

import base64
import binascii
import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer

from service.matrix import keyword
from service.schemas import Id, Input, Output
from service.states import CellState, JobState, Origin
from worker.messages import Verdict

MOST_NAMED = 200
"""Runtimes, suites and patterns that one request may name, each."""

Pattern = Annotated[str, Field(min_length=1, max_length=400)]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=MOST_NAMED)]
RuntimeName = Annotated[str, Field(max_length=200, examples=["py3.11-torch2.9.1-cu129-pl2.6.6"])]
NodeId = Annotated[str, Field(min_length=1, max_length=4000, examples=["tests/test_fit.py::test_parity[adam]"])]
RepositoryName = Annotated[str, Field(min_length=1, max_length=100, examples=["graphreplay"])]
Label = Annotated[str, Field(max_length=200)]
WorkPackage = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z]+-[0-9A-Za-z]+$")]
RequestedBy = Annotated[str, Field(max_length=200)]
Reason = Annotated[str, Field(max_length=1000)]
SuiteName = Annotated[str, Field(max_length=100)]


def _decoded(value: Any) -> Any:
    """Strictly: pydantic's own base64 type drops what is none, and would try another patch than was meant."""
    if not isinstance(value, str):
        return value  # bytes are the patch itself; the type refuses all else
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"not base64: {error}") from error


def _understood(expression: str) -> str:
    if expression and (fault := keyword.fault(expression)):
        raise ValueError(f"{fault}; give an expression as pytest's -k takes it")
    return expression


Keyword = Annotated[str, Field(max_length=1000, examples=["adam and not slow"]), AfterValidator(_understood)]

Base64 = Annotated[
    bytes,
    BeforeValidator(_decoded, json_schema_input_type=str),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), return_type=str, when_used="json"),
    Field(max_length=16 * 2**20, json_schema_extra={"contentEncoding": "base64"}),
]
"""Bytes that are base64 in JSON and themselves in Python."""


class TreeInput(Input):
    """A SHA, branch or tag, and a patch to put on it: ``probe``, its bytes in base64, kept exactly as sent."""

    ref: Annotated[str, Field(min_length=1, max_length=250, examples=["main"])]
    probe: Base64 | None = None


class JobInput(Input):
    """A commit plus a matrix. What is left out comes from the tree's ``replaybench.toml``.

    ``include`` and ``exclude`` are shell patterns over the cells' names (``*/py3.11-*/gate``). ``keyword`` (pytest's
    ``-k``), ``cases`` (node ids, or the file or class above them) and ``only_failed_of`` (a job's number) make each
    cell run a selection of its suite, which its table says; ``repeat`` makes each cell that many times.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"repository": "graphreplay", "trees": [{"ref": "main"}]},
                {
                    "repository": "graphreplay",
                    "trees": [{"ref": "main"}],
                    "suites": ["gate"],
                    "exclude": ["*/py3.9*"],
                    "priority": 10,
                    "label": "before the release",
                    "work_package": "WP-207",
                    "reason": "does the gate hold",
                    "dry_run": True,
                },
            ]
        }
    )

    repository: RepositoryName
    trees: Annotated[list[TreeInput], Field(min_length=1, max_length=100)]
    runtimes: Annotated[list[RuntimeName], Field(max_length=MOST_NAMED)] | None = None
    suites: Annotated[list[SuiteName], Field(max_length=MOST_NAMED)] | None = None
    include: Patterns = ()
    exclude: Patterns = ()
    keyword: Keyword = ""
    cases: Annotated[tuple[NodeId, ...], Field(max_length=1000)] = ()
    only_failed_of: Id | None = None
    repeat: Annotated[int, Field(ge=1, le=100)] = 1
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    label: Label | None = None
    work_package: WorkPackage | None = None
    requested_by: RequestedBy | None = None
    reason: Reason | None = None
    dry_run: bool = False


class TreeOutput(Output):
    """A commit, its probe and the tree that results (git's object id)."""

    name: str
    commit: str
    probe_digest: str | None
    digest: str


class PlannedCell(Output):
    """A cell as a dry run shows it."""

    name: str
    tree: str
    runtime: str
    suite: str
    kind: str
    selection: str | None = None


class PlanOutput(Output):
    """What a submission would become."""

    repository: str
    trees: list[TreeOutput]
    cells: list[PlannedCell]


class CellOutput(Output):
    """A cell as it stands. ``attempt`` is the id (URL) of the attempt shown: the one under way, else the deciding one,
    else the latest. ``counts`` maps outcomes to cases of that attempt; ``collected`` is how many it was to run.
    ``waiting_reason`` says why a queued cell still waits, where more is known than that workers are busy.
    ``selection`` says what of its suite it runs, where that is not the whole; ``run`` is its number among repetitions.
    ``origin`` is ``imported`` where the results were made elsewhere; no worker of ours ran them.
    """

    id: int
    job: int
    position: int
    name: str
    tree: str
    runtime: str
    runtime_title: str
    suite: str
    kind: str
    selection: str | None = None
    run: int = 1
    state: CellState
    verdict: Verdict | None
    revision: int
    attempt: int | None
    attempts: int
    counts: dict[str, int]
    collected: int
    running_case: str | None
    flaky: bool
    gpu: str | None
    worker: str | None
    detail: str
    waiting_reason: str | None
    origin: Origin = Origin.RUN
    queued_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None


class JobOutput(Output):
    """A job as it stands. ``cells`` counts its cells by state and, where ended, by verdict. ``detail`` says why it
    waits or ended, where its cells do not: a planning that failed, an approval that is missing, a newer job. Of
    an import it says what in its report could not be taken as it stands. ``origin`` is
    ``imported`` where it holds a report of results that were made elsewhere.
    """

    id: int
    repository: str
    state: JobState
    origin: Origin = Origin.RUN
    revision: int
    priority: int
    label: str | None
    work_package: str | None
    requested_by: str | None
    reason: str | None
    detail: str | None = None
    trees: list[str]
    cells: dict[str, int]
    counts: dict[str, int]
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    url: str


class CancelOutput(JobOutput):
    """A job that is cancelled. Where cells of it still run, its state says so: ``told_within_s`` is how many seconds it
    takes at most until their workers are told to stop them.
    """

    told_within_s: float


class RerunInput(Input):
    """Which cells of an ended or running job to queue again: those that ended without passing, or these."""

    cells: Annotated[list[Id] | None, Field(max_length=10_000)] = None


class Snapshot(Output):
    """One event of a job's live stream: the job and its cells that changed since the event before (all of them in the
    first). The event's id is the job's revision.
    """

    job: JobOutput
    cells: list[CellOutput]
