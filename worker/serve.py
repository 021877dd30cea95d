"""Claims cells and runs them, as long as some fit: the plain function behind a wake-up."""

from __future__ import annotations

import threading
import time

import structlog

from worker.attempt import Host, run_attempt
from worker.client import Refused, Retryable, ServiceError
from worker.gpus.devices import ChoosingBusy, DeviceLease, DevicePool
from worker.membership import Membership
from worker.messages import Assignment, Device
from worker.settings import Settings

log = structlog.get_logger()

_RETRY_S = (0.1, 0.3, 1.0, 3.0)
_LOOK_S = 0.2

_Claimed = tuple[Assignment, DeviceLease]


def kinds(settings: Settings, devices: tuple[Device, ...]) -> tuple[str, ...]:
    """The queues that this worker consumes."""
    cuda = tuple("cuda" if count == 1 else f"cuda.{count}" for count in range(1, len(devices) + 1))
    return ("cpu", *cuda, *settings.labels)


class Server:
    """Runs up to ``slots`` attempts at once."""

    def __init__(self, host: Host, membership: Membership, pool: DevicePool, slots: int) -> None:
        self._host = host
        self._membership = membership
        self._pool = pool
        self._count = slots
        self._slots = threading.Semaphore(slots)
        self._lock = threading.Lock()
        self._busy = 0
        self.asked = 0
        """How often somebody asked it to serve."""
        self.draining = threading.Event()
        """Set: what runs goes on, and nothing more is claimed."""

    @property
    def busy(self) -> int:
        """How many slots are taken, by an attempt or by a claim."""
        return self._busy

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return self._busy < self._count

    def _count_busy(self, more: int) -> None:
        with self._lock:
            self._busy += more

    def serve(self) -> int:
        """Claim and run until nothing fits. How many attempts were run.

        Where every slot is taken it returns at once: whoever holds a slot claims again when its attempt has ended.
        """
        ran = 0
        with self._lock:
            self.asked += 1
        while self._claims and self._slots.acquire(blocking=False):
            self._count_busy(1)
            try:
                if not self._serve_one():
                    break
                ran += 1
            finally:
                self._count_busy(-1)
                self._slots.release()
        return ran

    @property
    def _claims(self) -> bool:
        return not (self._host.stopping.is_set() or self.draining.is_set())

    def serve_in_background(self) -> None:
        """Claim once per slot right away: work may have waited before this worker came."""
        for number in range(self._count):
            threading.Thread(target=self.serve, name=f"first-claim-{number}", daemon=True).start()

    def wait_idle(self, grace_s: float) -> bool:
        """Wait until no attempt runs. Whether that came true within the grace."""
        deadline = time.monotonic() + grace_s
        taken = 0
        while taken < self._count and time.monotonic() < deadline:
            taken += self._slots.acquire(timeout=max(0.0, deadline - time.monotonic()))
        return taken == self._count

    def _serve_one(self) -> bool:
        claimed = self._claimed()
        if claimed is None:
            return False
        assignment, lease = claimed
        log.info("claimed", attempt=assignment.attempt, cell=assignment.cell.name, devices=lease.uuids)
        try:
            devices = tuple(device for device in self._host.health.devices() if device.uuid in lease.uuids)
            run_attempt(assignment, devices, self._host)
        finally:
            lease.release()
        return True

    def _claimed(self) -> _Claimed | None:
        """A cell with the devices that it runs on, tried a few times. Whoever waits for another try holds nothing, so
        that the host's other slots and workers get to choose meanwhile."""
        for wait in _RETRY_S:
            try:
                return self._claim()
            except ChoosingBusy as busy:
                log.warning("no claim", reason=str(busy))
                return None
            except Retryable as error:
                log.warning("claim waits for the service", error=str(error))
                self._wait(error.after_s or wait)
            except Refused as error:
                log.warning("claim refused, registering again", error=str(error))
                if not self._membership.again():
                    return None
            except ServiceError as error:
                log.error("claim failed", error=str(error))
                return None
            if not self._claims:
                return None
        return None  # The service's sweep wakes again for what still waits.

    def _wait(self, seconds: float) -> None:
        """So long, or until the worker claims nothing more."""
        until = time.monotonic() + seconds
        while self._claims and (left := until - time.monotonic()) > 0:
            self._host.stopping.wait(min(left, _LOOK_S))

    def _claim(self) -> _Claimed | None:
        """Ask once, with all devices that are free and fit, while nobody else on this host chooses.

        Raises:
            ChoosingBusy, ServiceError: nothing was claimed, and no device is held.
        """
        with self._pool.choosing() as lease:
            lease.keep([uuid for uuid in lease.uuids if not self._host.health.check(uuid)])
            assignment = self._host.client.claim(self._membership.claim(lease.uuids))
            lease.keep(_chosen(assignment, lease) if assignment else ())
        return (assignment, lease) if assignment else None


def _chosen(assignment: Assignment, lease: DeviceLease) -> tuple[str, ...]:
    """The devices that the service picked among the free ones; the first of these where it named none."""
    return assignment.devices or lease.uuids[: assignment.cell.suite.devices]
