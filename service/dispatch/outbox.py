"""Wake-ups that a transaction calls for. They are sent only after its commit, so that no worker looks too early."""

from __future__ import annotations

from collections import Counter

from sqlalchemy.orm import Session

KEY = "wakes"
MOST = 32
"""More wake-ups than this at once say nothing more: each task claims until nothing fits."""


def wake(session: Session, kind: str) -> None:
    """Notes that there is work of a kind."""
    session.info.setdefault(KEY, Counter())[kind] += 1


def take(session: Session) -> list[str]:
    """The noted kinds, one entry for each wake-up to send; they are forgotten."""
    noted: Counter[str] = session.info.pop(KEY, Counter())
    return [kind for kind, count in sorted(noted.items()) for _ in range(min(count, MOST))]
