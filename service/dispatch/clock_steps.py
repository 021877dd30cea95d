"""Tells a wall clock that was set from time that passed. Pure: no database, no framework."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from service.clock import now

STEP_S = 5.0
"""The two clocks part by less through being read one behind the other, and while one is slewed."""
REMEMBERED = 100


@dataclass(frozen=True)
class Look:
    """Both clocks at once. ``silence_s`` is the time that passed since the last look that was kept, nothing before the
    first one; ``step_s`` is by how much the wall clock was set meanwhile, forward or back, 0 where it was not.
    """

    moment: datetime.datetime
    steady: float
    silence_s: float | None
    step_s: float


class Clocks:
    """Compares the wall clock, in which leases are written, with one that nobody sets.

    A machine that slept is told as a step too: its steady clock stood still.
    """

    def __init__(
        self, wall: Callable[[], datetime.datetime] = now, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self.steady = wall, steady
        self._kept: tuple[datetime.datetime, float] | None = None
        self._forward: deque[tuple[datetime.datetime, float]] = deque(maxlen=REMEMBERED)

    def look(self) -> Look:
        """Reads both clocks."""
        moment, steady = self._wall(), self.steady()
        if self._kept is None:
            return Look(moment, steady, None, 0.0)
        before, since = self._kept
        passed = steady - since
        step = (moment - before).total_seconds() - passed
        return Look(moment, steady, passed, step if abs(step) > STEP_S else 0.0)

    def keep(self, look: Look) -> None:
        """Has the next look compare with this one, as of now: the time since it is none of its silence."""
        if look.step_s > 0:
            unset = look.moment - datetime.timedelta(seconds=look.step_s)
            self._forward.append((unset, look.step_s))
        steady = self.steady()
        self._kept = look.moment + datetime.timedelta(seconds=steady - look.steady), steady

    def skipped_s(self, since: datetime.datetime) -> float:
        """Seconds by which the wall clock was set forward since a moment: they are none that passed."""
        return sum(step for before, step in self._forward if since <= before)
