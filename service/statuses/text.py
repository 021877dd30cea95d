"""What a commit's status says: its context and its sentence. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from service.results import table
from service.states import CommitState, JobState
from worker.messages import Outcome, Verdict

LONGEST = 140
"""What GitHub takes of a description."""

LONGEST_CONTEXT = 100

PLAN_CONTEXT = "replaybench/plan"

PARTIAL = ("include", "exclude", "keyword", "cases", "only_failed_of", "runtimes_left_out")
"""Keys of a job's request that make it run less than its suites. Such a result must not pass for theirs."""


def context(suites: Iterable[str], request: Mapping[str, Any]) -> str:
    """The context of a job's status: the same for every job that runs the same suites.

    A job's label is no part of it: it may say anything, and a forge's required checks go by the name.
    """
    names = sorted(set(suites))
    joined = "+".join(names)
    if len(joined) > LONGEST_CONTEXT:
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
        joined = f"{len(names)} suites {digest}"
    partial = " (part)" if any(request.get(key) for key in PARTIAL) else ""
    return f"replaybench/{joined}{partial}"


def sentence(state: CommitState, counts: Mapping[str, int], verdicts: Iterable[Verdict | None]) -> str:
    """``18 failed, 9 passed``, with what counts do not say: ``9 passed; 1 cell environment``."""
    if state is CommitState.PENDING:
        return "waiting for a worker"
    if state is CommitState.RUNNING:
        return "running"
    counted = table.result({outcome: counts.get(outcome, 0) for outcome in Outcome}, None)
    others = Counter(verdict for verdict in verdicts if verdict not in table.SAID_BY_COUNTS and verdict is not None)
    said = [f"{count} {'cell' if count == 1 else 'cells'} {verdict}" for verdict, count in sorted(others.items())]
    return shorten("; ".join(filter(None, [counted, ", ".join(said)])) or str(state))


def plan_sentence(state: JobState, detail: str | None) -> str:
    """What became of the plan of a job that a hook started. ``passed``: it has its cells."""
    if state is JobState.WAITING:
        return "waits for an approval by a person"
    if state is JobState.BROKEN:
        return shorten(f"cannot be planned: {detail or 'see the job'}")
    return {JobState.PASSED: "planned", JobState.CANCELLED: "cancelled"}.get(state, "is being planned")


def shorten(text: str) -> str:
    """At most as many characters as every forge takes, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1].rstrip(' ,;')}…"
