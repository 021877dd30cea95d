"""When a dead child may start again, and when there is no hope.

A child that never comes up is past help: a setting is wrong, a file is missing. One that was up and died may be started
again for ever, ever later: a test can kill its worker, and that must not end the system for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0


@dataclass
class Restarts:
    """One child's deaths. Times are monotonic seconds. ``unborn`` counts those since it was last up."""

    deaths: list[float] = field(default_factory=list)
    unborn: int = 0

    def died(self, now: float, *, was_up: bool) -> None:
        """Records a death."""
        self.deaths = [when for when in self.deaths if now - when < WINDOW_S] + [now]
        self.unborn = 0 if was_up else self.unborn + 1

    @property
    def hopeless(self) -> bool:
        """Whether it died ``LIMIT`` times in a row before it was up, within ``WINDOW_S``."""
        return self.unborn >= LIMIT and len(self.deaths) >= LIMIT

    @property
    def due(self) -> float:
        """The earliest time of the next start; each death within the window doubles the wait."""
        if not self.deaths:
            return 0.0
        return self.deaths[-1] + min(FIRST_DELAY_S * 2.0 ** (len(self.deaths) - 1), LONGEST_DELAY_S)
