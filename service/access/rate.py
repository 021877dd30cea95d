"""Rate limits: how many calls a minute, of whom. Pure: no database, no framework."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable

MINUTE_S = 60.0
MOST = 20_000
"""Callers remembered at once. A flood from more addresses than this forgets those who called least."""


class Rate:
    """Lets each key make ``per_minute`` calls a minute, all at once if it likes; 0 sets no limit.

    One moment is kept for each key: when all that it has taken is made good again.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = MINUTE_S / per_minute if per_minute else 0.0
        self._clock = clock
        self._good_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """Takes one call: 0, or how many seconds to wait for the next if this one is too many."""
        if not self._every:
            return 0.0
        moment = self._clock()
        with self._lock:
            good_at = max(moment, self._good_at.get(key, 0.0)) + self._every
            if good_at - moment > MINUTE_S + 1e-6:
                return good_at - moment - MINUTE_S
            if key not in self._good_at and len(self._good_at) >= MOST:
                self._forget(moment)
            self._good_at[key] = good_at
        return 0.0

    def _forget(self, moment: float) -> None:
        busy = sorted((good_at, key) for key, good_at in self._good_at.items() if good_at > moment)
        self._good_at = {key: good_at for good_at, key in busy[-MOST // 2 :]}


def address_key(address: str) -> str:
    """What an address is counted by: an IPv6 host has a whole /64 of addresses, so that is counted as one."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address}"
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped:
            return f"address {known.ipv4_mapped}"
        return f"address {ipaddress.ip_network((known, 64), strict=False)}"
    return f"address {known}"
