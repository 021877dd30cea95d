"""Whether the service's own threads live and get on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.errors import PartStalled

PATIENCE_S = 120.0
"""How much longer than its own pause and calls a turn may take: a locked database holds each statement for a while."""


@dataclass
class Pulse:
    """The sign of life of one thread. ``patience_s`` is how long one turn of it may take.

    A thread that was never started, or was told to stop, is not missed.
    """

    thread: threading.Thread
    patience_s: float
    clock: Callable[[], float] = time.monotonic
    _last: float | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def start(self) -> None:
        """Starts the thread, which is missed from now on."""
        self.beat()
        self.thread.start()

    def beat(self) -> None:
        """Says that the thread gets on."""
        self._last = self.clock()

    def stop(self) -> None:
        """Says that the thread is about to end."""
        self._stopped = True

    def fault(self) -> str | None:
        """What is wrong with the thread, in words."""
        last = self._last
        if last is None or self._stopped:
            return None
        if not self.thread.is_alive():
            return f"its thread {self.thread.name!r} has ended"
        silent = self.clock() - last
        if silent <= self.patience_s:
            return None
        return f"its thread {self.thread.name!r} has not got on for {silent:.0f} s; {self.patience_s:.0f} s is the most"


class Part(Protocol):
    """What the service does by itself, in one thread or several."""

    @property
    def pulses(self) -> Sequence[Pulse]:
        """The signs of life of its threads."""

    def start(self) -> None:
        """Begins."""

    def stop(self) -> None:
        """Ends."""


def check(pulses: Iterable[Pulse]) -> None:
    """Looks at threads.

    Raises:
        PartStalled: one of them ended, or hangs.
    """
    faults = [fault for pulse in pulses if (fault := pulse.fault()) is not None]
    if faults:
        raise PartStalled(
            f"The service answers, but {'; '.join(faults)}: leases, wake-ups, plans or messages wait. Start the "
            "service again; its log says what happened."
        )
