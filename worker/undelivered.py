"""Spools that the service could not take: set aside, never thrown away unseen, and sent again when an operator asks.

``replaybench worker spools`` lists them, ``replaybench worker deliver`` sends those of this worker once more. They lie
in ``undelivered/`` of the cache folder, each named after its worker's key, its time and its attempt.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from worker.client import Client, Fenced, Retryable
from worker.delivery import deliver_leftover
from worker.settings import cache_dir, load
from worker.spool import read

log = structlog.get_logger()

MOST_BYTES = 256 << 20
"""How much is kept in all; the oldest go first."""

WORDS = ("spools", "deliver")


def folder(cache: Path) -> Path:
    """Where they lie."""
    return cache / "undelivered"


def set_aside(path: Path, cache: Path, key: str, why: str) -> bool:
    """Move a spool of the worker with this key to the others, and keep these within their bound. Whether that went
    well: if not, it is where it was."""
    place = folder(cache)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")
    kept = place / f"{key}-{stamp}-{path.name}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)  # Spools hold lease tokens.
        path.rename(kept)
    except OSError as error:
        log.error("spool not set aside: the next start tries again", path=str(path), to=str(kept), reason=str(error))
        return False
    log.error("spool set aside: `replaybench worker deliver` sends it again", path=str(kept), reason=why)
    _bound(place)
    return True


def tell(cache: Path) -> None:
    """Say in the log what lies there, where something does."""
    if found := _spools(folder(cache)):
        size = sum(path.stat().st_size for path in found)
        log.warning("spools lie aside", folder=str(folder(cache)), spools=len(found), bytes=size)


def _spools(place: Path) -> list[Path]:
    """The spools there, the oldest first."""
    return sorted(place.glob("*.jsonl"), key=lambda path: path.name.partition("-")[2])


def _bound(place: Path) -> None:
    """Remove the oldest while they are too many. The newest one is cut, at most: a reader leaves a broken line out."""
    *older, newest = _spools(place)
    if newest.stat().st_size > MOST_BYTES:
        log.error("spool cut: it is larger than all may be", path=str(newest), bytes=newest.stat().st_size)
        os.truncate(newest, MOST_BYTES)
    size = sum(path.stat().st_size for path in [*older, newest])
    for path in older:
        if size <= MOST_BYTES:
            return
        size -= path.stat().st_size
        path.unlink()
        log.error("oldest spool removed: too much lies aside", path=str(path), most_bytes=MOST_BYTES)


def run(words: Sequence[str]) -> int:
    """Do what an operator asks. The exit code: 0; 1 where something is left that was to be delivered.

    Raises:
        SettingsError: a setting is missing that delivering needs.
    """
    if words[0] == "deliver":
        return _deliver()
    json.dump([_told(path) for path in _spools(folder(cache_dir()))], sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


def _told(path: Path) -> dict[str, object]:
    """A spool's attempt, and how many cases of each outcome it holds."""
    facts: dict[str, object] = {"path": str(path), "bytes": path.stat().st_size}
    try:
        spool = read(path)
        events = [event for group in spool.groups for event in group] if spool else []
        cases = collections.Counter(event["outcome"] for event in events if event["kind"] == "case")
    except (ValueError, LookupError, TypeError) as error:
        return facts | {"unreadable": str(error)}
    return facts | {"attempt": spool.attempt if spool else None, "events": len(events), "cases": dict(cases)}


def _deliver() -> int:
    settings = load()
    client = Client(settings.service_url, settings.token)
    left = 0
    try:
        for path in _spools(folder(settings.cache_dir)):
            if path.name.startswith(f"{settings.key}-"):
                left += not _sent(client, path)
    finally:
        client.close()
    return int(left > 0)


def _sent(client: Client, path: Path) -> bool:
    try:
        why = deliver_leftover(client, path)
    except Retryable as error:
        why = str(error)
    except Fenced as error:
        why = f"{error}; its cell runs again, and the file may be removed"
    if why:
        sys.stdout.write(f"left: {path}: {why}\n")
        return False
    path.unlink()
    sys.stdout.write(f"delivered: {path}\n")
    return True
