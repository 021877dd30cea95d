"""What is remembered of this host's cards between cells, for all its workers: faults that stay, and error counts.

A fault stays until an operator clears it, and over restarts of workers. A restart of the machine clears it too: a card
that is still broken says so again.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from pathlib import Path
from typing import Any


class FaultBook:
    """Two small files a card, in the folder of the host's device locks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fault(self, uuid: str) -> str:
        """The fault that stays; empty where there is none."""
        return str(self._read(self._fault(uuid)).get("reason", ""))

    def keep(self, uuid: str, reason: str) -> None:
        """Remember a fault. The first one is kept: what follows follows from it."""
        if not self.fault(uuid):
            moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            self._write(self._fault(uuid), {"reason": f"{reason}, {moment}"})

    def clear(self, uuid: str) -> None:
        """Forget a card's fault, and count its errors anew."""
        for path in (self._fault(uuid), self._errors(uuid)):
            path.unlink(missing_ok=True)

    def errors(self, uuid: str) -> int | None:
        """How many uncorrected errors the card had counted when it was last well; ``None`` where nobody looked yet."""
        count = self._read(self._errors(uuid)).get("uncorrected")
        return count if isinstance(count, int) else None

    def note_errors(self, uuid: str, count: int | None) -> None:
        """Remember the count of a card that is well."""
        if count is not None and count != self.errors(uuid):
            self._write(self._errors(uuid), {"uncorrected": count})

    def _fault(self, uuid: str) -> Path:
        return self._folder / f"{uuid.replace('/', '_')}.fault.json"

    def _errors(self, uuid: str) -> Path:
        return self._folder / f"{uuid.replace('/', '_')}.errors.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("boot") == _boot() else {}

    def _write(self, path: Path, data: dict[str, Any]) -> None:
        """Put a file in place at once. Where the disk is full, this process still holds what it would say."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(data | {"boot": _boot()}), encoding="utf-8")
            fresh.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()


def _boot() -> str:
    """Which start of the machine this is; always the same where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
