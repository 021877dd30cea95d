"""``python -m worker``: look at what this machine has, register, and serve cells until told to stop."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import platform
import secrets
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

import structlog
from filelock import FileLock, Timeout

from worker import gpu, operator, room
from worker.attempt import Host
from worker.boot_folder import BootFolder
from worker.client import Client, ServiceError
from worker.confinement import find_holds
from worker.device_faults import FaultBook
from worker.devices import DevicePool
from worker.health import DeviceHealth
from worker.host_runtime import probe_hosts
from worker.membership import Membership
from worker.messages import CONTRACT, Capabilities, Registration
from worker.runtime import Tools
from worker.serve import Server, kinds
from worker.settings import Settings, SettingsError, load
from worker.survivors import end_survivors
from worker.tasks import consume, make_app, stop_consuming
from worker.xids import XidWatch

log = structlog.get_logger()

_PR_SET_DUMPABLE = 4


class _Unfailing(io.TextIOBase):
    """The worker's own log. Where its disk is full a line is left out: no attempt and no thread ends for that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def main() -> int:
    """Run a worker, or what an operator asks. The exit code: 0 when stopped, 2 when it cannot start."""
    if sys.argv[1:]:
        return operator.run(sys.argv[1:])
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
    )
    try:
        return _Worker(load()).run()
    except (SettingsError, ServiceError) as error:
        sys.stderr.write(f"replaybench worker: {error}\n")
        return 2


def _say_ready() -> None:
    sys.stdout.write("worker ready\n")
    sys.stdout.flush()


def _claim_name(cache: Path, settings: Settings) -> FileLock:
    """This worker's name at its service, for this process alone: the service takes a second worker of the name for the
    first one's next start, and ends what the first is running."""
    names = cache / "names"
    names.mkdir(exist_ok=True)
    key = hashlib.sha256(f"{settings.service_url} {settings.name}".encode()).hexdigest()[:16]
    lock = FileLock(names / f"{key}.lock", thread_local=False)
    try:
        lock.acquire(timeout=settings.stop_grace_s)  # An earlier start of it may still be ending.
    except Timeout:
        raise SettingsError(
            f"REPLAYBENCH_WORKER_NAME={settings.name!r} is the name of another worker that runs here for "
            f"{settings.service_url}: give this one a name of its own"
        ) from None
    return lock


def _hide_environment() -> None:
    """Keep other processes of this user, the tests among them, from reading this one's memory and environment."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class _Worker:
    def __init__(self, settings: Settings) -> None:
        _hide_environment()
        self.settings = settings
        self.stopping = threading.Event()
        self.client = Client(settings.service_url, settings.token)
        self.devices = gpu.inventory()
        self.holds = find_holds(settings)
        self.hosts = probe_hosts(settings.host_runtimes)
        self.slots = max(len(self.devices), settings.cpu_slots)
        self.kinds = kinds(settings, self.devices)
        cache, boot = settings.cache_dir, secrets.token_hex(8)
        cache.mkdir(parents=True, exist_ok=True)
        self.name = _claim_name(cache, settings)
        self.attempts = BootFolder(cache / "attempts", boot)
        self.spools = BootFolder(cache / "spool", boot)
        self.health = DeviceHealth(
            self.devices,
            FaultBook(cache / "devices"),
            attempts=cache / "attempts",
            free_percent=settings.gpu_free_percent,
            grace_s=settings.gpu_grace_s,
        )
        self.membership = Membership(self.client, self.registration(boot), self.stopping, self.health.devices)
        self.health.on_change = self.membership.tell_devices

    def registration(self, boot: str) -> Registration:
        capabilities = Capabilities(
            kinds=self.kinds,
            devices=self.devices,
            host_runtimes=tuple(self.hosts),
            builds=self.settings.builds,
            mounts=tuple(self.settings.mounts),
            network=self.settings.network,
        )
        return Registration(CONTRACT, self.settings.name, boot, platform.node(), capabilities)

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        server = self.enter()
        if server is None:
            return 0
        app = make_app(self.settings.broker_url, self.kinds, server.serve)
        server.serve_in_background()
        code = consume(app, self.slots, _say_ready)
        server.wait_idle(self.settings.stop_grace_s)
        for folder in (self.spools, self.attempts):
            folder.close()
        return code

    def enter(self) -> Server | None:
        """Register, after what the dead left is delivered and removed; nothing when asked to stop first."""
        settings = self.settings
        pool = DevicePool(self.devices, settings.cache_dir / "devices")
        XidWatch([device.uuid for device in self.devices if device.uuid], self.health.note_xid, self.stopping).start()
        self.health.recheck(pool)
        tools = Tools(
            settings.uv_command,
            settings.cache_dir,
            settings.build_timeout_s,
            settings.builds,
            settings.build_failure_s,
            settings.free_bytes,
            settings.runtimes_cap_bytes,
            settings.cache_dir / "uv",
        )
        spools = self.spools.dead()
        leftovers = [path for folder in spools for path in sorted(folder.path.glob("*.jsonl"))]
        if not self.membership.enter(leftovers):
            return None
        attempts = self.attempts.dead()
        for folder in attempts:
            end_survivors(folder.path)
            if self.holds.cgroups:
                self.holds.cgroups.end(folder.path.name)
        for folder in [*spools, *attempts]:
            folder.remove()
        self.health.recheck(pool)  # What the dead had left on a card is gone now.
        for name in room.clean(settings.cache_dir):
            log.warning("half-built runtime removed", runtime=name)
        self.membership.beat_in_background()
        self.health.recheck_in_background(pool, settings.gpu_recheck_s, self.stopping)
        host = Host(
            settings=settings,
            client=self.client,
            tools=tools,
            hosts=self.hosts,
            folder=self.attempts.path,
            spool=self.spools.path,
            heartbeat_s=self.membership.registered.heartbeat_s,
            stopping=self.stopping,
            holds=self.holds,
            health=self.health,
        )
        return Server(host, self.membership, pool, self.slots)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The first signal ends attempts and delivers their last word; a second one, or a long grace, ends at once."""
        if self.stopping.is_set():
            os._exit(128 + number)
        self.stopping.set()
        stop_consuming()
        timer = threading.Timer(self.settings.stop_grace_s, os._exit, args=(128 + number,))
        timer.daemon = True
        timer.start()


if __name__ == "__main__":
    sys.exit(main())
