"""Failures of builds, remembered on this host and shared by the cells that waited for them.

The rule: a failure counts for a cell that was queued before it happened, while the package sources are the same, and
for as long as the worker is set to. A cell that somebody submits or runs again afterwards has it tried once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SOURCES = ("UV_", "SSL_CERT")
_CLOCK_S = 5.0


@dataclass(frozen=True)
class BuildFailures:
    """The last failed build of the runtime at ``home``, if there is one, and what was printed."""

    home: Path
    env: Mapping[str, str]

    @property
    def log(self) -> Path:
        """The log of the last build, failed or not."""
        return self.home.with_name(self.home.name + ".log")

    @property
    def _marker(self) -> Path:
        return self.home.with_name(self.home.name + ".failed")

    def remembered(self, queued: float, lasts_s: float) -> str:
        """Why the build failed, as far as that counts for a cell that was queued then (seconds since the epoch)."""
        try:
            found = json.loads(self._marker.read_text(encoding="utf-8"))
            at, sources, text = float(found["at"]), found["sources"], str(found["text"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        age = time.time() - at
        counts = queued <= at and -_CLOCK_S <= age < lasts_s and sources == self._sources()
        return text if counts else ""

    def remember(self, text: str) -> None:
        """Note a failure for the others."""
        fresh = self._marker.with_name(self._marker.name + ".new")
        note = {"at": time.time(), "sources": self._sources(), "text": text}
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(note), encoding="utf-8")
            fresh.rename(self._marker)

    def forget(self) -> None:
        """Nothing failed any more."""
        self._marker.unlink(missing_ok=True)

    def _sources(self) -> str:
        """A digest of where packages come from."""
        told = sorted((key, value) for key, value in self.env.items() if key.startswith(_SOURCES))
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()
