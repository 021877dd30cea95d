"""The service's clock, by which leases run."""

from __future__ import annotations

import datetime


def now() -> datetime.datetime:
    """This moment, in UTC."""
    return datetime.datetime.now(datetime.UTC)
