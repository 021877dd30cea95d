"""When something that another server did not take is sent again, and when it is given up. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeAlias

FIRST_S = 5.0
LONGEST_S = 900.0
UNTOLD_S = 60.0
"""How long to wait for a rate limit that says nothing of its end, as GitHub asks."""

RETRIED = frozenset({408, 409, 423, 425, 429})
"""Answers below 500 that another try may change."""


@dataclass(frozen=True)
class Answer:
    """What a server said. Header names are in small letters; the body is as much as was read of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def text(self) -> str:
        """The beginning of the body, in one line."""
        return " ".join(self.body[:2000].decode(errors="replace").split())[:300]


@dataclass(frozen=True)
class Taken:
    """It is delivered."""

    reason: str = ""


@dataclass(frozen=True)
class Again:
    """It may be taken later. ``wait_s`` is how long the server asked to be left alone, with everything."""

    reason: str
    wait_s: float | None = None


@dataclass(frozen=True)
class Never:
    """Nothing will change by trying again. ``disable``: nor for anything else that goes to the same place."""

    reason: str
    disable: bool = False


Step: TypeAlias = Taken | Again | Never


def wait_asked(answer: Answer, now: datetime.datetime) -> float | None:
    """How many seconds a server asked to wait: ``Retry-After``, or the reset of an exhausted rate limit."""
    asked = answer.headers.get("retry-after", "").strip()
    if asked:
        waited = _seconds(asked, now)
        if waited is not None:
            return waited
    for limit in ("x-ratelimit", "ratelimit"):
        if answer.headers.get(f"{limit}-remaining", "").strip() == "0":
            moment = answer.headers.get(f"{limit}-reset", "").strip()
            if moment.isdecimal() and len(moment) < 12:
                return max(0.0, int(moment) - now.timestamp())
    return None


def _seconds(asked: str, now: datetime.datetime) -> float | None:
    if asked.isdecimal():
        return float(asked[:12])
    try:
        moment = parsedate_to_datetime(asked)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - now).total_seconds())


def next_due(
    step: Again,
    tries: int,
    since: datetime.datetime,
    now: datetime.datetime,
    give_up_s: float,
    spread: Callable[[float, float], float],
) -> datetime.datetime | Never:
    """When to try again after so many tries, or why not.

    The wait doubles from try to try; ``spread`` picks a moment from the second half of it, so that what failed
    together does not come again together. What a server asked for is waited in full, and a little more.
    """
    backed_off = min(LONGEST_S, FIRST_S * 2.0 ** min(tries - 1, 30))
    wait = spread(backed_off / 2, backed_off)
    if step.wait_s is not None:
        wait = max(wait, step.wait_s + spread(0.0, min(5.0, step.wait_s / 4)))
    end = since + datetime.timedelta(seconds=give_up_s)
    # A server may ask for more years than a date can hold.
    due = now + datetime.timedelta(seconds=min(wait, 10 * 365 * 86400.0))
    if due <= end:
        return due
    tried = "1 try" if tries == 1 else f"{tries} tries"
    asked = f" (the server asks to wait {step.wait_s:.0f} s)" if step.wait_s and step.wait_s > backed_off else ""
    return Never(f"given up after {tried} in {(now - since).total_seconds():.0f} s{asked}: {step.reason}")
