"""When a dead child may start again, and when there is no hope."""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0


@dataclass
class Restarts:
    """One child's deaths. Times are monotonic seconds."""

    deaths: list[float] = field(default_factory=list)

    def died(self, now: float) -> None:
        """Records a death."""
        self.deaths = [when for when in self.deaths if now - when < WINDOW_S] + [now]

    @property
    def hopeless(self) -> bool:
        """Whether it died ``LIMIT`` times within ``WINDOW_S``."""
        return len(self.deaths) >= LIMIT

    @property
    def due(self) -> float:
        """The earliest time of the next start; each death within the window doubles the wait."""
        if not self.deaths:
            return 0.0
        return self.deaths[-1] + min(FIRST_DELAY_S * 2.0 ** (len(self.deaths) - 1), LONGEST_DELAY_S)
