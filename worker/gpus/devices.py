"""Leases of CUDA devices on this host: one file lock per device, so that two workers never share a card.

A lock file's lock goes with the process that holds it, so a killed worker frees its devices. Nobody waits for a card
while holding another: who chooses takes all that are free, and gives back at once what it does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from worker.messages import Device

PATIENCE_S = 60.0


class ChoosingBusy(Exception):
    """Nobody else gets to choose devices. The text says where to look."""


class DeviceLease:
    """Devices that this attempt holds until ``release``."""

    def __init__(self, held: dict[str, FileLock]) -> None:
        self._held = held

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self._held)

    def keep(self, uuids: Collection[str]) -> None:
        """Give back all but these devices."""
        for uuid in self.uuids:
            if uuid not in uuids:
                self._held.pop(uuid).release()

    def release(self) -> None:
        self.keep(())


class DevicePool:
    """The devices of this host, free or leased, across threads and processes."""

    def __init__(self, devices: tuple[Device, ...], folder: Path) -> None:
        self._devices = [device for device in devices if device.uuid]
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def choosing(self, patience_s: float = PATIENCE_S) -> Iterator[DeviceLease]:
        """All devices that are free now, while nobody else on this host chooses. Whoever enters keeps what it needs.

        Raises:
            ChoosingBusy: somebody else chose all the while. A worker that was stopped in the middle of it, or whose
                service is slow, must not keep the others of the host from ever trying again.
        """
        try:
            lock = FileLock(self._folder / "choosing.lock", thread_local=False).acquire(timeout=patience_s)
        except Timeout:
            raise ChoosingBusy(
                f"another worker of this host has been choosing devices for {patience_s:g} s "
                f"({self._folder / 'choosing.lock'}): see whether one is stopped"
            ) from None
        with lock:
            lease = DeviceLease(dict(self._take_free()))
            with ExitStack() as stack:
                stack.callback(lease.release)
                yield lease
                stack.pop_all()

    @contextmanager
    def looking(self) -> Iterator[tuple[str, ...] | None]:
        """The devices that are free now, held while they are looked at; ``None`` where somebody is choosing."""
        choosing = FileLock(self._folder / "choosing.lock", thread_local=False)
        try:
            choosing.acquire(blocking=False)
        except Timeout:
            yield None
            return
        lease = DeviceLease(dict(self._take_free()))
        try:
            yield lease.uuids
        finally:
            lease.release()
            choosing.release()

    def _take_free(self) -> Iterator[tuple[str, FileLock]]:
        for device in self._devices:
            lock = FileLock(self._folder / f"{device.uuid}.lock", thread_local=False)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            yield device.uuid, lock
