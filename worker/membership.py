"""This worker's standing with the service: registered, heard from while idle, and registered again when forgotten."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from worker.client import Client, ContractMismatch, Fenced, Refused, Retryable, ServiceError
from worker.delivery import deliver_leftover
from worker.messages import Claim, Device, Heartbeat, Registered, Registration

log = structlog.get_logger()

_LEFTOVER_TRIES = 20


class Membership:
    """Registers, and keeps the worker's number. ``devices`` tells how its devices are now. ``refusal`` says why the
    service will have no more of it, if so; then ``on_refused`` was called."""

    def __init__(
        self,
        client: Client,
        registration: Registration,
        stopping: threading.Event,
        devices: Callable[[], tuple[Device, ...]] = tuple,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._registration = registration
        self._stopping = stopping
        self._devices = devices
        self._told: tuple[Device, ...] = ()
        self._news = threading.Event()
        self._on_refused = on_refused
        self.refusal = ""
        self.registered = Registered(0, 10.0)

    def enter(self, leftovers: list[Path], set_aside: Callable[[Path, str], None]) -> bool:
        """Register, however long the service takes to be there; false when asked to stop first. What killed workers
        left in their spools goes first: it would renew leases that registering ends. What the service cannot take is
        ``set_aside``, with the reason.

        Raises:
            ServiceError: the service refuses this worker: its token or its contract version is wrong.
        """
        waiting = collections.deque(leftovers)
        broke: collections.Counter[Path] = collections.Counter()

        def try_once() -> None:
            while waiting:
                path = waiting.popleft()
                try:
                    if why := deliver_leftover(self._client, path):
                        set_aside(path, why)
                except Fenced as error:
                    log.info("leftover spool not wanted", path=str(path), reason=str(error))
                except Retryable as error:
                    broke[path] += error.broke
                    if broke[path] >= _LEFTOVER_TRIES:
                        set_aside(path, f"the service broke over it {broke[path]} times: {error}")
                        continue
                    waiting.append(path)  # The others' leases run out meanwhile: they go first.
                    raise
            self.register()

        return self._patiently(try_once)

    def _patiently(self, step: Callable[[], None]) -> bool:
        failures = 0
        while not self._stopping.is_set():
            try:
                step()
            except Retryable as error:
                if failures % 20 == 0:
                    log.warning("service not there yet", error=str(error))
                self._stopping.wait(error.after_s or min(3.0, 0.1 * 2 ** min(failures, 5)))
                failures += 1
            else:
                return True
        return False

    def register(self) -> None:
        """Register once, now."""
        devices = self._devices()
        capabilities = dataclasses.replace(self._registration.capabilities, devices=devices)
        self.registered = self._client.register(dataclasses.replace(self._registration, capabilities=capabilities))
        self._told = devices

    def tell_devices(self) -> None:
        """Have the service hear soon that a device has changed."""
        self._news.set()

    def claim(self, free_devices: tuple[str, ...]) -> Claim:
        return Claim(self.registered.worker, self._registration.boot, free_devices)

    def beat_in_background(self) -> None:
        """Be heard from at the interval that the service named."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while self._wait():
            devices = self._devices()
            changed = list(map(_plain, devices)) != list(map(_plain, self._told))
            try:
                beat = Heartbeat(self.registered.worker, self._registration.boot, devices if changed else None)
                self._client.heartbeat(beat)
                self._told = devices if changed else self._told
            except Retryable as error:
                log.debug("heartbeat not heard", error=str(error))
            except ServiceError as error:
                if not self._refused(error):
                    log.warning("forgotten by the service, registering again", error=str(error))
                    self.again()

    def _wait(self) -> bool:
        """Until the next sign of life is due, or there is news. Whether the worker goes on."""
        self._news.wait(self.registered.heartbeat_s)
        self._news.clear()
        return not self._stopping.is_set()

    def again(self) -> bool:
        """Register once more, as one whom the service forgot. Whether that went well."""
        try:
            self.register()
        except ServiceError as error:
            if not self._refused(error):
                log.error("registering again failed", error=str(error))
            return False
        return True

    def _refused(self, error: ServiceError) -> bool:
        """Whether the service will have no more of this worker: it ends then, rather than ask for ever."""
        if not (isinstance(error, ContractMismatch) or (isinstance(error, Refused) and error.unwelcome)):
            return False
        if not self.refusal:
            self.refusal = str(error)
            log.error("refused by the service, ending", error=self.refusal)
            self._on_refused()
        return True


def _plain(device: Device) -> Device:
    """A device but for what changes all the time."""
    return dataclasses.replace(device, memory_free_mib=None)
