"""The answers of the comparison and history endpoints."""

from __future__ import annotations

import datetime
from typing import Literal

from service.compare.comparison import Change
from service.schemas import Output
from service.states import Origin
from worker.messages import FailureClass, Outcome, Verdict


class ComparedTree(Output):
    """A tree that is compared."""

    name: str
    commit: str
    probe_digest: str | None


class SideOutput(Output):
    """The deciding attempt of one tree under a runtime and suite. ``selection`` says what of the suite was run;
    ``origin`` is ``imported`` where no worker of ours ran it.
    """

    job: int
    cell: int
    attempt: int
    verdict: Verdict | None
    comparison_key: str | None
    selection: str | None
    origin: Origin


class PairOutput(Output):
    """One runtime and suite in both trees. ``broke`` says that a case broke, or the suite as a whole.

    ``lost`` counts the cases that passed in base, and that nobody saw pass or break in head: skipped there, absent, not
    observed, flaky, or expected to fail. ``compared``: both sides ran, under one comparison key.
    """

    runtime: str
    runtime_title: str
    suite: str
    base: SideOutput | None
    head: SideOutput | None
    counts: dict[str, int]
    broke: bool
    compared: bool
    lost: int
    note: str


class PlaceOutput(Output):
    """A runtime and suite that one tree alone was asked for, so that there is nothing to compare it with."""

    runtime: str
    runtime_title: str
    suite: str
    side: Literal["base", "head"]


class ObservationOutput(Output):
    """What was observed of a case in one tree."""

    case: int
    attempt: int
    outcome: Outcome
    failure_class: FailureClass | None
    message: str


class ComparedCase(Output):
    """One case in both trees; the side that lacks it is absent."""

    runtime: str
    suite: str
    node_id: str
    occurrence: int
    change: Change
    base: ObservationOutput | None
    head: ObservationOutput | None


class CompareOutput(Output):
    """Two trees, case by case. ``cases`` is one page: those of the change asked for, else all but ``still-passing``.

    ``next`` is the query to add for the following page. ``broke``: something that passed in base does not in head.
    ``complete``: every pair has an attempt on both sides that ran and may be compared, and none has lost a case.
    ``alone``: what one tree alone was asked for; it says nothing for or against the other.
    """

    repository: str
    job: int | None
    base: ComparedTree
    head: ComparedTree
    counts: dict[str, int]
    broke: bool
    complete: bool
    pairs: list[PairOutput]
    alone: list[PlaceOutput]
    cases: list[ComparedCase]
    next: str | None = None


class HistoryEntry(Output):
    """What one deciding attempt observed of a case; ``origin`` is ``imported`` where no worker of ours ran it."""

    case: int
    job: int
    cell: int
    attempt: int
    tree: str
    commit: str
    runtime: str
    runtime_title: str
    suite: str
    occurrence: int
    outcome: Outcome
    failure_class: FailureClass | None
    duration_s: float
    message: str
    comparison_key: str | None
    gpu: str | None
    origin: Origin
    ended_at: datetime.datetime | None
