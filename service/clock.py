"""The service's clock, by which leases run."""

from __future__ import annotations

import datetime


def now() -> datetime.datetime:
    """This moment, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def elapsed_s(begun: datetime.datetime, ended: datetime.datetime) -> float:
    """Seconds from one moment to another; 0 where the clock was set back between them by more than that."""
    return max(0.0, (ended - begun).total_seconds())
