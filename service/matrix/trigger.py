"""What a tree's ``[trigger]`` says: which events start which suites, and when one starts by itself."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from service.matrix import pattern
from service.matrix.cron import Cron


class TriggerEvent(enum.StrEnum):
    """What can start a job by itself. ``refs`` of a rule are over the name given here."""

    PUSH = "push"  # the branch
    PULL_REQUEST = "pull_request"  # the branch that it is to be merged into
    MERGE_GROUP = "merge_group"  # the branch that it is to be merged into
    TAG = "tag"  # the tag
    SCHEDULE = "schedule"  # the cron line, letter for letter


@dataclass(frozen=True)
class Rule:
    """One table of ``[trigger]``. Empty patterns fit all; empty ``suites`` and ``runtimes`` mean the tree's own."""

    refs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()

    def fits(self, ref: str, changed: Collection[str] | None) -> bool:
        """Whether an event on a ref starts it. ``changed`` are the paths, ``None`` where they cannot be known."""
        if self.refs and not matches(self.refs, ref):
            return False
        return not self.paths or changed is None or any(matches(self.paths, path) for path in changed)


@dataclass(frozen=True)
class Schedule:
    """A cron line with what it starts on the default branch."""

    line: str
    cron: Cron
    rule: Rule


@dataclass(frozen=True)
class Triggers:
    """All of ``[trigger]``."""

    rules: Mapping[TriggerEvent, tuple[Rule, ...]] = field(default_factory=dict)
    schedules: tuple[Schedule, ...] = ()

    def choose(self, event: TriggerEvent, ref: str, changed: Collection[str] | None) -> Rule | None:
        """The first rule that fits, in the order of the file."""
        if event is TriggerEvent.SCHEDULE:
            return next((schedule.rule for schedule in self.schedules if schedule.line == ref), None)
        return next((rule for rule in self.rules.get(event, ()) if rule.fits(ref, changed)), None)

    def asks_for_paths(self, event: TriggerEvent) -> bool:
        """Whether it matters what changed."""
        return any(rule.paths for rule in self.rules.get(event, ()))


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a name fits: one pattern at least, and none of those that begin with ``!``.

    ``*`` and ``?`` stay within one part of a path; ``**`` crosses parts, and ``**/`` may be no part at all. Where only
    ``!`` patterns are given, everything else fits.
    """
    wanted = [text for text in patterns if not text.startswith("!")]
    unwanted = [text.removeprefix("!") for text in patterns if text.startswith("!")]
    return (not wanted or _any(wanted, name)) and not _any(unwanted, name)


def _any(patterns: Sequence[str], name: str) -> bool:
    return any(pattern.read(text).fits(name) for text in patterns)
