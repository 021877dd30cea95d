"""What a cell or a job has to show at a glance: one word, one bar, one sentence."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from service.jobs.schemas import CellOutput, JobOutput
from service.results import table
from service.results.verdict import observed
from service.states import CellState
from service.words import number
from worker.messages import Outcome

TONES: Mapping[str, tuple[Outcome, ...]] = {
    "bad": (Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT),
    "odd": (Outcome.NOT_OBSERVED, Outcome.XPASSED),
    "good": (Outcome.PASSED,),
    "calm": (Outcome.SKIPPED, Outcome.XFAILED),
}
LEAST = 2.0
"""Hundredths of a bar that even one case gets: one failure in a thousand has to be seen."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a bar, in hundredths."""

    tone: str
    start: float
    width: float


def bar(counts: Mapping[str, int], total: int) -> tuple[Segment, ...]:
    """The segments of a bar over ``total`` cases; what is not reported yet stays empty."""
    sums = {tone: sum(counts.get(word, 0) for word in words) for tone, words in TONES.items()}
    whole = max(total, sum(sums.values()))
    if not whole:
        return ()
    widths = {tone: max(LEAST, 100 * count / whole) for tone, count in sums.items() if count}
    scale = min(1.0, 100 / sum(widths.values())) if widths else 1.0
    segments, start = [], 0.0
    for tone, width in widths.items():
        segments.append(Segment(tone, round(start, 2), round(width * scale, 2)))
        start += width * scale
    return tuple(segments)


def counts(by_outcome: Mapping[str, int]) -> str:
    """``18 failed, 9 passed``, as the table says it; empty where nothing was reported."""
    return table.result({outcome: by_outcome.get(outcome, 0) for outcome in Outcome}, None)


def tone(outcome: str) -> str:
    """The tone in which an outcome is shown."""
    return next((tone for tone, words in TONES.items() if outcome in words), "calm")


def began(cell: CellOutput) -> datetime.datetime | None:
    """When the shown attempt's processes started; a cell that is queued again has not begun."""
    return None if cell.state is CellState.QUEUED else cell.started_at


def word(cell: CellOutput) -> str:
    """A cell's state, or its verdict once ended."""
    return cell.verdict if cell.state is CellState.ENDED and cell.verdict else cell.state


def reported(counts: Mapping[str, int], collected: int) -> str:
    """``18 of 27 cases``; empty before anything is collected. Cases that were asked for and not observed are not
    reported, and never are more reported than there were: a later process may have collected some anew.
    """
    done = observed(counts)
    if not collected and not done:
        return ""
    return f"{done:,} of {number(collected, 'case')}" if done < collected else number(done, "case")


def reason(cell: CellOutput) -> str:
    """Why a cell waits, or did not pass."""
    return (cell.waiting_reason or "") if cell.state is CellState.QUEUED else cell.detail


def total(job: JobOutput) -> int:
    """How many cells a job has."""
    return sum(job.cells.values())


def ended(job: JobOutput) -> int:
    """How many of a job's cells have ended."""
    under_way = sum(job.cells.get(state, 0) for state in CellState if state is not CellState.ENDED)
    return total(job) - under_way


def summary(job: JobOutput) -> str:
    """``3 of 8 cells ended: 1 failed, 2 passed``, for eyes and for screen readers."""
    whole, done = total(job), ended(job)
    if not whole:
        return job.detail or "No cells yet: the trees are being read."
    waiting = {state.value for state in CellState}
    verdicts = ", ".join(f"{count} {key}" for key, count in job.cells.items() if count and key not in waiting)
    told = f": {verdicts}" if verdicts else ""
    return f"{done} of {number(whole, 'cell')} ended{told}"
