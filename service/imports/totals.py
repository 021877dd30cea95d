"""The totals that a report tells, against the cases that it has. Pure: no database, no framework.

Producers count differently. Most count the cases of the file, and perhaps skipped ones that they leave out. pytest
counts each subtest that passed too, and Catch2 each assertion, and neither writes a case for it: there a larger total
proves nothing. (pytest's `src/_pytest/junitxml.py`, Catch2's `catch_reporter_junit.cpp`.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from service.imports.cases import was_skipped
from service.imports.reading import CaseElement, Report
from service.words import number

MOST = 10**9
"""Of what a report counts, the most that a column holds beside its cases: more says no more."""
LEFT_OUT = ("skipped", "disabled", "ignored", "skip", "skips")
KEYS = ("tests", "failures", "errors", *LEFT_OUT)


@dataclass(frozen=True)
class Gap:
    """``missing`` cases are told and not there, which is proven; ``text`` says so, or that a total is larger which does
    not prove it. Empty where the cases reach the totals."""

    missing: int = 0
    text: str = ""


def count(suite: Mapping[str, str], key: str) -> int:
    """A count, ``MOST`` at most, in whatever notation; 0 where it is none."""
    found = _decimal(suite.get(key, ""))
    return math.ceil(max(Decimal(0), min(found, Decimal(MOST)))) if found is not None else 0


def is_odd(suite: Mapping[str, str], key: str) -> bool:
    """Whether something else than a count stands where one belongs; nothing at all is not odd."""
    found = _decimal(suite.get(key, ""))
    return bool(suite.get(key, "").strip()) and (found is None or found < 0)


def gap(report: Report) -> Gap:
    """What the totals of a report tell beyond its cases: of each outermost suite by itself, or of the whole."""
    by_suite: dict[int, list[CaseElement]] = {}
    for case in report.cases:
        by_suite.setdefault(case.suite, []).append(case)
    missing = unproven = 0
    for index, suite in enumerate(report.suites):
        lacking = _lacking(suite, by_suite.get(index, []))
        if _counts_more(report, suite):
            unproven += lacking
        else:
            missing += lacking
    beyond = max(0, _lacking(report.whole, report.cases) - missing - unproven)
    if any(_counts_more(report, suite) for suite in report.suites):
        unproven += beyond
    else:
        missing += beyond
    return Gap(missing, _text(len(report.cases), missing, unproven))


def _text(here: int, missing: int, unproven: int) -> str:
    if missing:
        return f"the report tells of {number(here + missing, 'case')} and has {here:,}; import it whole"
    if unproven:
        return (
            f"the report counts {here + unproven:,} and has {number(here, 'case')}; what wrote it counts subtests or "
            "assertions too, so that none need be missing"
        )
    return ""


def _lacking(suite: Mapping[str, str], cases: Sequence[CaseElement]) -> int:
    """How many cases a total has beyond those that are there, and beyond skipped ones that are not in the file."""
    told = count(suite, "tests")
    if told <= len(cases):
        return 0
    skipped = sum(map(was_skipped, cases))
    return max(0, told - len(cases) - max(0, sum(count(suite, key) for key in LEFT_OUT) - skipped))


def _counts_more(report: Report, suite: Mapping[str, str]) -> bool:
    """Whether pytest wrote the suite, or Catch2, whose host name is always the same."""
    return suite.get("name") == "pytest" or report.whole.get("name") == "pytest tests" or suite.get("hostname") == "tbd"


def _decimal(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return None if found.is_nan() else found
