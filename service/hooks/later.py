"""Which plans are tried again later, since what they lack may come back: when, and for how long. Pure."""

from __future__ import annotations

import datetime
import random
from collections.abc import Collection
from dataclasses import dataclass

from service.outgoing.retry import Again, Never, next_due


@dataclass(frozen=True)
class _Tried:
    since: datetime.datetime
    tries: int
    due: datetime.datetime
    itself: bool


class Later:
    """The jobs that wait for another try, by number. It is kept in memory alone: a restart tries at once."""

    def __init__(self, give_up_s: float) -> None:
        self._give_up_s = give_up_s
        self._tried: dict[int, _Tried] = {}

    def not_due(self, moment: datetime.datetime) -> list[int]:
        """The jobs that are left alone for now."""
        return [job for job, tried in self._tried.items() if tried.due > moment]

    def keep(self, jobs: Collection[int], moment: datetime.datetime) -> None:
        """Forgets the jobs that are due and not among those that still wait for a plan."""
        self._tried = {job: tried for job, tried in self._tried.items() if tried.due > moment or job in jobs}

    def failed_itself(self, job: int) -> bool:
        """Whether the job's own plan failed the last time, and not that of another job of its repository."""
        return job in self._tried and self._tried[job].itself

    def failed(self, job: int, reason: str, moment: datetime.datetime, *, itself: bool) -> Never | None:
        """Notes a try without success; why there is no other, if so."""
        known = self._tried.pop(job, None)
        since, tries = (known.since, known.tries + 1) if known else (moment, 1)
        due = next_due(Again(reason), tries, since, moment, self._give_up_s, random.uniform)
        if isinstance(due, Never):
            return due
        self._tried[job] = _Tried(since, tries, due, itself)
        return None
