"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, deadline_s: float = 30.0) -> T:
    """The first true value of the condition; fails with what was waited for when the deadline passes."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for {what}; last seen: {value!r}")
        time.sleep(0.02)
