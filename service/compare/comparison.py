"""What became of each case from one tree to another. Pure: no database, no framework."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from worker.messages import FailureClass, Outcome, Verdict

Key = tuple[str, int]
"""A case among those of an attempt: its node id's digest and its occurrence."""


class Change(enum.StrEnum):
    """What became of a case; first what wants to be looked at."""

    BROKEN = "broken"
    FAILING_DIFFERENTLY = "failing-differently"
    FLAKY = "flaky"
    EXPECTED_TO_FAIL = "expected-to-fail"
    FIXED = "fixed"
    VANISHED = "vanished"
    NEW = "new"
    NOT_COMPARABLE = "not-comparable"
    NOT_RUN = "not-run"
    FAILING_THE_SAME = "failing-the-same"
    STILL_PASSING = "still-passing"


MEANING: Mapping[Change, str] = {
    Change.BROKEN: "passed before, fails now",
    Change.FAILING_DIFFERENTLY: "fails with another outcome or failure class",
    Change.FLAKY: "attempts of one tree disagree on it",
    Change.EXPECTED_TO_FAIL: "fails now, and is marked as one that may, which it was not before",
    Change.FIXED: "failed before, as expected or not, and passes now",
    Change.VANISHED: "was there before, is not collected now",
    Change.NEW: "is collected only now",
    Change.NOT_COMPARABLE: "observed with another GPU model, driver, torch build or lightning",
    Change.NOT_RUN: "skipped, not observed or not selected on one side, or absent where not all cases were told",
    Change.FAILING_THE_SAME: "fails as before",
    Change.STILL_PASSING: "passes as before, or is expected to fail as before",
}

PASSES = frozenset({Outcome.PASSED, Outcome.XPASSED})
GOOD = PASSES | {Outcome.XFAILED}
SIDES = ("base", "head")
UNSEEN = frozenset({Outcome.SKIPPED, Outcome.NOT_OBSERVED})
WHOLE = frozenset({Verdict.PASSED, Verdict.FAILED})
"""Verdicts under which every collected case was reported, so that an absent case is one that the tree has not."""
CUT_SHORT = frozenset({Verdict.CRASHED, Verdict.TIMED_OUT})
"""Verdicts under which the cases were collected, and perhaps not all of them reported."""
NEVER_RAN = frozenset({Verdict.ENVIRONMENT, Verdict.INFRASTRUCTURE, Verdict.LOST, Verdict.CANCELLED})
"""Verdicts that say nothing of the tree."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The observation of a case that counts. ``id`` is the row's number."""

    id: int
    outcome: Outcome
    failure_class: FailureClass | None = None


@dataclass(frozen=True)
class Side:
    """One tree under one runtime and suite: its deciding attempt, or that there is none yet.

    ``whole`` is false where only a selection of the suite was run, ``imported`` true where a report says what a run
    elsewhere observed; ``collected`` is how many cases the tree said to have; ``flaky`` holds the cases on which other
    ended attempts of the same tree, runtime, suite and comparison key disagree.
    """

    verdict: Verdict | None = None
    key: str | None = None
    whole: bool = True
    imported: bool = False
    collected: int = 0
    cases: Mapping[Key, Seen] = field(default_factory=dict)
    flaky: Set[Key] = frozenset()

    @property
    def ran(self) -> bool:
        """Whether the attempt says something of the tree."""
        return self.verdict is not None and self.verdict not in NEVER_RAN

    @property
    def complete(self) -> bool:
        """Whether an absent case is one that the tree has not. After a crash or a time limit, that is so where every
        collected case has its row, be it only as not observed.
        """
        told = self.verdict in CUT_SHORT and len(self.cases) >= self.collected > 0
        return self.whole and (self.verdict in WHOLE or told)


@dataclass(frozen=True, slots=True)
class Compared:
    """One case on both sides."""

    key: Key
    change: Change
    base: Seen | None
    head: Seen | None

    @property
    def lost(self) -> bool:
        """Whether it passed in base, and nobody saw it pass or break in head: it is skipped there, absent, not
        observed, flaky, or expected to fail.
        """
        if self.base is None or self.base.outcome not in GOOD or self.change is Change.BROKEN:
            return False
        enough = PASSES if self.base.outcome in PASSES else GOOD
        return self.head is None or self.head.outcome not in enough

    @property
    def shown(self) -> Seen:
        """The observation that stands for the case: head's, else base's."""
        seen = self.head or self.base
        assert seen is not None  # noqa: S101 -- a case is on one side at least
        return seen

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in a list: what head has, as head stored it, then what only base has."""
        return (0 if self.head else 1, self.shown.id)


def compare(base: Side, head: Side) -> list[Compared]:
    """Every case of the two sides, in the order of ``place``."""
    keys = base.cases.keys() | head.cases.keys()
    found = (Compared(key, _change(key, base, head), base.cases.get(key), head.cases.get(key)) for key in keys)
    return sorted(found, key=lambda case: case.place)


def _change(key: Key, base: Side, head: Side) -> Change:
    before, after = base.cases.get(key), head.cases.get(key)
    if before is None or after is None:
        if not (base if before is None else head).complete:
            return Change.NOT_RUN
        return Change.NEW if before is None else Change.VANISHED
    if base.key != head.key:
        return Change.NOT_COMPARABLE
    return Change.FLAKY if key in base.flaky or key in head.flaky else _on_both(before, after)


def _on_both(before: Seen, after: Seen) -> Change:
    if before.outcome in UNSEEN or after.outcome in UNSEEN:
        return Change.NOT_RUN
    if after.outcome is Outcome.XFAILED:
        return Change.STILL_PASSING if before.outcome is Outcome.XFAILED else Change.EXPECTED_TO_FAIL
    if after.outcome in PASSES:
        return Change.STILL_PASSING if before.outcome in PASSES else Change.FIXED
    if before.outcome in GOOD:
        return Change.BROKEN
    same = (before.outcome, before.failure_class) == (after.outcome, after.failure_class)
    return Change.FAILING_THE_SAME if same else Change.FAILING_DIFFERENTLY


def counts(cases: Iterable[Compared]) -> dict[Change, int]:
    """How many cases each change has; what wants to be looked at stands first."""
    found = Counter(case.change for case in cases)
    return {change: found[change] for change in Change if found[change]}


def conclusion(*, broke: bool, complete: bool) -> str:
    """The whole in a few words."""
    if broke:
        return "something broke"
    return "nothing broke" if complete else "nothing broke, but not all could be compared"


def stopped(base: Side, head: Side) -> bool:
    """Whether the whole suite broke: it ran to its end before, and now it crashes, stops or cannot be collected."""
    return base.verdict in WHOLE and head.ran and head.verdict not in WHOLE


def note(base: Side, head: Side, lost: int = 0) -> str:
    """What a reader must know of a pair before its counts, or nothing. ``lost`` is how many of its cases are."""
    parts = [f"{name} was imported" for name, side in zip(SIDES, (base, head), strict=True) if side.imported]
    parts += _doubts(base, head)
    if lost and base.ran and head.ran and base.key == head.key:
        parts.append(f"passed in base, not seen to pass in head: {lost}")
    return "; ".join(parts)


def _doubts(base: Side, head: Side) -> list[str]:
    for name, side in zip(SIDES, (base, head), strict=True):
        if side.verdict is None:
            return [f"{name} has no deciding attempt"]
        if not side.ran:
            return [f"{name} was not run: {side.verdict}"]
    if base.key != head.key:
        return [f"not comparable: base was observed with {base.key or 'unknown'}, head with {head.key or 'unknown'}"]
    parts = [f"{name} ran a selection" for name, side in zip(SIDES, (base, head), strict=True) if not side.whole]
    if stopped(base, head):
        parts.append(f"the suite stopped: {base.verdict} before, {_words(head.verdict)} now")
    elif head.whole and not head.complete:
        parts.append(f"head did not tell all its cases ({_words(head.verdict)}): what it lacks may have vanished")
    if base.whole and not base.complete:
        parts.append(f"base did not tell all its cases ({_words(base.verdict)}): what it lacks may be new")
    return parts


def _words(verdict: Verdict | None) -> str:
    return str(verdict).replace("-", " ")
