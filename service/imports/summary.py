"""What a report amounts to as an attempt: verdict, times, environment. Pure: no database, no framework."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.imports import totals
from service.imports.cases import Cases, cut, seconds, total_s
from service.imports.reading import Report
from service.imports.schemas import ImportInput
from service.imports.totals import Gap
from service.results.verdict import FAILING, NOTHING_COLLECTED, ProcessFacts, decide
from service.states import Origin
from service.words import number
from worker.messages import Cause, Outcome, RuntimeSpec, Verdict

LOG_TAIL = 64 << 10
MOST_QUOTED = 3
EARLIEST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Summary:
    """An imported attempt beside its cases. ``collected`` counts also what is told in totals and has no case."""

    verdict: Verdict
    detail: str
    collected: int
    started_at: datetime.datetime
    ended_at: datetime.datetime
    log_tail: str


def summarize(report: Report, cases: Cases, now: datetime.datetime) -> Summary:
    """The summary of a report that came in ``now``. JUnit knows no exit status: it is what pytest's would have been."""
    counts = cases.counts
    failing = any(counts.get(outcome) for outcome in FAILING)
    untold = 0 if failing else max(0, _declared(report) - cases.failing)
    gap = totals.gap(report)
    status = 1 if failing else 0 if counts else NOTHING_COLLECTED
    facts = ProcessFacts(exit_code=status, signal=None, finished=not cases.faults)
    collected = len(cases.last) + max(untold, gap.missing)
    started, ended = _times(report, cases, now)
    return Summary(
        verdict=decide(Cause.FINISHED, [facts], counts, collected),
        detail=_detail(report, cases, untold, gap, now),
        collected=collected,
        started_at=started,
        ended_at=ended,
        log_tail="".join(report.output)[-LOG_TAIL:],
    )


def environment(about: ImportInput, runtime: RuntimeSpec, report: Report, tree: str) -> dict[str, Any]:
    """The record of where the results were made, as far as the sender and the report tell. ``tree`` is its digest."""
    host = next((suite["hostname"] for suite in report.suites if suite.get("hostname")), None)
    told = {
        "host": host,
        "gpus": [{"model": model} for model in about.gpu],
        "driver": about.driver,
        "python": runtime.python,
        "torch": runtime.torch_version,
        "lightning": runtime.lightning,
        "tree": tree,
        "properties": report.properties,
    }
    return {**{key: value for key, value in told.items() if value}, "origin": str(Origin.IMPORTED)}


def _declared(report: Report) -> int:
    """How many failures and errors the outermost suites say they have."""
    return min(totals.MOST, sum(totals.count(suite, key) for suite in report.suites for key in ("failures", "errors")))


def _detail(report: Report, cases: Cases, untold: int, gap: Gap, now: datetime.datetime) -> str:
    parts = [*cases.faults]
    if gap.text:
        parts.append(gap.text)
    if untold:
        parts.append(
            f"the report counts {number(untold, 'failure or error', 'failures or errors')} that no case of it has"
        )
    again = {(case.node_id, case.occurrence) for case in cases.earlier}
    saved = sum(case.outcome is Outcome.PASSED and (case.node_id, case.occurrence) in again for case in cases.last)
    if saved:
        parts.append(f"passed only when run again: {saved}")
    return "; ".join([*parts, *_unread(report, cases, now)])[:4000]


def _unread(report: Report, cases: Cases, now: datetime.datetime) -> Iterator[str]:
    """What the report tells in numbers that are none, and what was made of it."""
    suites = [report.whole, *report.suites]
    if cases.odd_times:
        yield f"of {number(len(cases.odd_times), 'case')} the time is no length of time and counts as 0 s: " + _quoted(
            cases.odd_times
        )
    if times := [suite["time"] for suite in suites if not seconds(suite.get("time", ""))[1]]:
        yield f"of {number(len(times), 'suite')} the time is no length of time and counts as 0 s: {_quoted(times)}"
    stamps = [stamp for suite in report.suites if (stamp := suite.get("timestamp", "")) and _stamp(stamp, now) is None]
    if stamps:
        yield f"of {number(len(stamps), 'suite')} the time stamp is of no past run and left out: {_quoted(stamps)}"
    if counts := [f"{key}={suite[key]}" for suite in suites for key in totals.KEYS if totals.is_odd(suite, key)]:
        yield f"totals that are no counts are left out: {_quoted(counts)}"


def _quoted(texts: Sequence[str]) -> str:
    """The different ones, the first few of them."""
    different = list(dict.fromkeys(texts))
    more = f" and {len(different) - MOST_QUOTED} more" if len(different) > MOST_QUOTED else ""
    return ", ".join(repr(cut(text, 40)) for text in different[:MOST_QUOTED]) + more


def _times(report: Report, cases: Cases, now: datetime.datetime) -> tuple[datetime.datetime, datetime.datetime]:
    """Start and end: the earliest suite's time stamp, and behind it what the suites say that they took, else what the
    cases did. Without a time stamp the end is now."""
    said = [seconds(suite["time"])[0] for suite in report.suites if suite.get("time")]
    length = datetime.timedelta(seconds=total_s(said or [case.duration_s for case in cases.last]))
    stamps = [stamp for suite in report.suites if (stamp := _stamp(suite.get("timestamp", ""), now)) is not None]
    start = min(stamps) if stamps else max(EARLIEST, now - length)
    return start, start + length


def _stamp(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """A time stamp, in UTC where it names no zone; nothing where it is none, or none of a past run."""
    try:
        stamp = datetime.datetime.fromisoformat(text)
        stamp = stamp.replace(tzinfo=stamp.tzinfo or datetime.UTC).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return stamp if EARLIEST <= stamp <= now + datetime.timedelta(days=1) else None
