"""Folders that belong to one worker process, its attempts' and its spools'; locks tell those of the dead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from worker.isolation.owned import remove


@dataclass(frozen=True)
class DeadFolder:
    """The folder of a worker process that is gone. Its lock is held, so nobody else looks after it meanwhile."""

    path: Path
    lock: FileLock

    def remove(self) -> None:
        remove(self.path)
        Path(self.lock.lock_file).unlink(missing_ok=True)
        self.lock.release()


class BootFolder:
    """A folder of this worker process alone, below ``root``. Its lock goes with the process.

    One with an ``owner`` is looked after by later processes of that owner only.
    """

    def __init__(self, root: Path, boot: str, owner: str = "") -> None:
        self._root = root
        self._owner = owner
        self.path = root / (f"{boot}-{owner}" if owner else boot)
        root.mkdir(parents=True, exist_ok=True)
        # Between a lock file's making and its locking another worker that starts could take it for one of the dead.
        self._starting = FileLock(f"{root}.lock", thread_local=False)
        self._lock = FileLock(root / f"{self.path.name}.lock", thread_local=False)
        with self._starting:
            self.path.mkdir(exist_ok=True)
            self._lock.acquire(blocking=False)

    def dead(self) -> list[DeadFolder]:
        """The folders of worker processes that are gone, but for those of other owners."""
        with self._starting:
            return self._dead()

    def _dead(self) -> list[DeadFolder]:
        found = []
        for path in sorted(self._root.glob("*.lock")):
            lock = FileLock(path, thread_local=False)
            if path.stem == self.path.name or (self._owner and path.stem.partition("-")[2] not in ("", self._owner)):
                continue
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            found.append(DeadFolder(path.with_suffix(""), lock))
        return found

    def close(self) -> None:
        """Give the folder up. One that still holds something stays, for the next start to look after."""
        if not any(self.path.iterdir()):
            self.path.rmdir()
            (self._root / f"{self.path.name}.lock").unlink(missing_ok=True)
        self._lock.release()
