"""Sums up the JUnit reports of a run, and fails where a test failed, none ran, or one was skipped unannounced.

A skip that nobody expects hides a loss, so ``.ci/allowed-skips.txt`` lists those that are expected: each line is a
shell pattern over ``package.module::test`` and, after a space, what the skip's own reason must say.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".cache" / "junit"
ALLOWED = ROOT / ".ci" / "allowed-skips.txt"


def main() -> int:
    rules = list(allowed(ALLOWED.read_text()))
    cases = [case for report in sorted(REPORTS.glob("*.xml")) for case in read(report)]
    surprises = [case for case in cases if case.outcome == "skipped" and not expected(case, rules)]
    for case in surprises:
        print(f"skipped and not listed in .ci/allowed-skips.txt: {case.name}: {case.reason}")
    print(summary(cases))
    return 1 if surprises or not cases or any(case.outcome == "failed" for case in cases) else 0


def allowed(text: str) -> Iterator[tuple[str, str]]:
    """The patterns and reasons of a list.

    Raises:
        SystemExit: a line gives no reason.
    """
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.partition(" ")
        if not reason.strip():
            sys.exit(f".ci/allowed-skips.txt: {line!r} gives no reason; write `PATTERN REASON`")
        yield pattern, reason.strip()


@dataclass(frozen=True)
class Case:
    """One test of a report."""

    name: str
    outcome: str
    reason: str


def expected(case: Case, rules: Iterable[tuple[str, str]]) -> bool:
    """Whether a skip is one of those that are listed, for the reason that is listed."""
    return any(fnmatchcase(case.name, pattern) and reason in case.reason for pattern, reason in rules)


def read(report: Path) -> Iterator[Case]:
    """The tests of a JUnit report. An expected failure counts as passed: what was expected came."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 -- pytest wrote it
        name = f"{case.get('classname')}::{case.get('name')}".removeprefix("::")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield Case(name, "failed", "")
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            yield Case(name, "skipped", skipped.get("message") or "")
        else:
            yield Case(name, "passed", "")


def summary(cases: Iterable[Case]) -> str:
    """``N passed, N failed, N skipped``."""
    counts = Counter(case.outcome for case in cases)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


if __name__ == "__main__":
    sys.exit(main())
