"""Keeps a row of children running, each started when those before it answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from service.up.child import Child, Program
from service.up.errors import HopelessError, UpError
from service.up.restarts import LIMIT, WINDOW_S

START_LIMIT_S = 120.0
"""How long a start may take: a first start may compile every module it imports."""


class Supervisor:
    """The children in the order in which they start; they stop in the opposite order."""

    def __init__(self, programs: Sequence[Program], say: Callable[[str], None]) -> None:
        self.children = [Child(program) for program in programs]
        self._say = say

    @property
    def ready(self) -> bool:
        """Whether every child answered since it was last started."""
        return all(child.ready for child in self.children)

    def tend(self) -> None:
        """One look: starts what may start, and starts again what died.

        Raises:
            HopelessError: a child died too often, or never became ready.
            UpError: a child refuses to start; the text is its own.
        """
        now = time.monotonic()
        for child in self.children:
            if child.ended:
                self._bury(child, now)
            if child.process is None:
                if now < child.restarts.due:
                    return
                child.start()
            if not self._is_up(child):
                self._check_start(child)
                return

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Stops all of them, the last one first."""
        for child in reversed(self.children):
            child.stop(hurry)

    def _is_up(self, child: Child) -> bool:
        """Whether it answers; said where it had died."""
        was_up = child.ready
        if not was_up and child.look() and child.restarts.deaths:
            self._say(f"{child.program.name} is up again")
        if not was_up and child.ready:
            for warning in child.new_warnings():
                self._say(f"warning: {warning}")
        return child.ready

    def _bury(self, child: Child, now: float) -> None:
        was_up = child.look()  # a log may tell of a start that no look has seen
        fate = f"{child.program.name} {child.bury()}"
        child.restarts.died(now, was_up=was_up)
        if child.refuses and not was_up:
            raise UpError(f"{fate}: {child.last_words()} (log: {child.program.log})")
        if child.restarts.hopeless:
            raise HopelessError(
                f"{fate}, {LIMIT} times within {WINDOW_S:.0f} s without being up. "
                f"The end of {child.program.log}:\n{child.tail()}"
            )
        self._say(f"{fate}; starting it again in {child.restarts.due - now:.1f} s (log: {child.program.log})")

    def _check_start(self, child: Child) -> None:
        if time.monotonic() - child.started_at > START_LIMIT_S:
            raise HopelessError(
                f"{child.program.name} is not ready after {START_LIMIT_S:.0f} s. "
                f"The end of {child.program.log}:\n{child.tail()}"
            )
