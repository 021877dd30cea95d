"""``python -m worker``: look at what this machine has, register, and serve cells until told to stop."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import platform
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

import structlog
from filelock import FileLock, Timeout

from worker import arguments, undelivered
from worker.attempt import Host
from worker.boot_folder import BootFolder
from worker.client import Client, ServiceError
from worker.consumer_watch import ConsumerWatch
from worker.enrolment import EnrolmentError
from worker.gpus import gpu, operator
from worker.gpus.device_faults import FaultBook
from worker.gpus.devices import DevicePool
from worker.gpus.health import DeviceHealth
from worker.gpus.xids import XidWatch
from worker.isolation.confinement import find_holds
from worker.isolation.survivors import end_survivors
from worker.library_logs import bridge
from worker.membership import Membership
from worker.messages import CONTRACT, Capabilities, Registration
from worker.runtimes import room
from worker.runtimes.host_runtime import probe_hosts
from worker.runtimes.runtime import Tools
from worker.serve import Server, kinds
from worker.settings import Settings, SettingsError, load
from worker.tasks import consume, make_app, stop_consuming
from worker.variables import unread

log = structlog.get_logger()

_PR_SET_DUMPABLE = 4
_DEAF = 75
"""The exit code of a worker whose consumer is dead: EX_TEMPFAIL, start it again."""


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
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        return _run_operator(sys.argv[1:])
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
    bridge()
    asked = arguments.parse(sys.argv[1:])
    try:
        if asked.enroll is not None:
            sys.stdout.write(f"{arguments.enroll(asked.enroll, asked.service)}\n")
            return 0
        for sentence in unread(os.environ):
            log.warning("setting not read", detail=sentence)
        return _Worker(load()).run()
    except (SettingsError, ServiceError, EnrolmentError) as error:
        return _refuse(str(error))


def _run_operator(words: list[str]) -> int:
    try:
        return undelivered.run(words) if words[0] in undelivered.WORDS and len(words) == 1 else operator.run(words)
    except SettingsError as error:
        return _refuse(str(error))


def _refuse(why: str) -> int:
    sys.stderr.write(f"replaybench worker: {why}\n")
    return 2


def _say_ready() -> None:
    sys.stdout.write("worker ready\n")
    sys.stdout.flush()


def _claim_name(cache: Path, settings: Settings) -> FileLock:
    """This worker's name at its service, for this process alone: the service takes a second worker of the name for the
    first one's next start, and ends what the first is running."""
    names = cache / "names"
    names.mkdir(exist_ok=True)
    lock = FileLock(names / f"{settings.key}.lock", thread_local=False)
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
        with structlog.contextvars.bound_contextvars(setting="REPLAYBENCH_HOST_RUNTIMES"):  # for what is left out
            self.hosts = probe_hosts(settings.host_runtimes)
        self.slots = max(len(self.devices), settings.cpu_slots)
        self.kinds = kinds(settings, self.devices)
        cache, boot = settings.cache_dir, secrets.token_hex(8)
        cache.mkdir(parents=True, exist_ok=True)
        self.name = _claim_name(cache, settings)
        self.attempts = BootFolder(cache / "attempts", boot)
        # Another worker of this cache must not deliver them: its token speaks for itself, or to another service.
        self.spools = BootFolder(cache / "spool", boot, settings.key)
        self.health = DeviceHealth(
            self.devices,
            FaultBook(cache / "devices"),
            attempts=cache / "attempts",
            free_percent=settings.gpu_free_percent,
            grace_s=settings.gpu_grace_s,
        )
        registration = self.registration(boot)
        self.membership = Membership(self.client, registration, self.stopping, self.health.devices, self.end)
        self.health.on_change = self.membership.tell_devices
        self.server: Server | None = None
        self.deaf = False
        self.unmoved: set[Path] = set()
        """Folders of spools that are neither delivered nor set aside."""

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
        server = self.server = self.enter()
        if server is None:
            return 0
        app = make_app(self.settings.broker_url, self.kinds, server.serve)
        watch = ConsumerWatch(
            app, self.kinds, server, self.stopping, limit_s=self.settings.deaf_s, on_dead=self.end_deaf
        )
        server.serve_in_background()
        watch.start()
        code = consume(app, self.slots, _say_ready)
        server.wait_idle(self.settings.drain_s + self.settings.stop_grace_s)
        self.close()
        if self.membership.refusal:
            return _refuse(self.membership.refusal)
        return _DEAF if self.deaf else code

    def close(self) -> None:
        """Give up the folders of this start."""
        for folder in (self.spools, self.attempts):
            folder.close()

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
        if not self.membership.enter(leftovers, self.set_aside):
            return None
        undelivered.tell(settings.cache_dir)
        attempts = self.attempts.dead()
        for folder in attempts:
            end_survivors(folder.path)
            if self.holds.cgroups:
                self.holds.cgroups.end(folder.path.name)
        for folder in [*spools, *attempts]:
            if folder.path not in self.unmoved:
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

    def set_aside(self, path: Path, why: str) -> None:
        """Keep a spool that the service could not take."""
        if not undelivered.set_aside(path, self.settings.cache_dir, self.settings.key, why):
            self.unmoved.add(path.parent)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The first signal lets attempts end by themselves where there is time to drain, then ends them and delivers
        their last word. The next one hurries: it ends the draining, or where nothing drains the process at once."""
        if self.stopping.is_set():
            os._exit(128 + number)
        server = self.server
        if self.settings.drain_s and server is not None and not server.draining.is_set():
            server.draining.set()
            stop_consuming()
            threading.Thread(target=self.drain, args=(server,), name="drain", daemon=True).start()
            return
        self.end(128 + number)

    def drain(self, server: Server) -> None:
        """Wait until no attempt runs or the time is over, then stop."""
        deadline = time.monotonic() + self.settings.drain_s
        while server.busy and time.monotonic() < deadline and not self.stopping.wait(0.1):
            pass
        if not self.stopping.is_set():
            self.end()

    def end(self, late: int = 1) -> None:
        """End the attempts and the process: within the grace, or else at once with the exit code ``late``."""
        self.stopping.set()
        stop_consuming()
        timer = threading.Timer(self.settings.stop_grace_s, os._exit, args=(late,))
        timer.daemon = True
        timer.start()

    def end_deaf(self) -> None:
        """End a process whose consumer is dead, for whoever looks after it to start another. The main thread may hang
        on the dead connection, so it is not waited for."""
        log.error("the consumer takes no wake-ups any more, ending", limit_s=self.settings.deaf_s)
        self.deaf = True
        self.stopping.set()
        self.close()
        os._exit(_DEAF)


if __name__ == "__main__":
    sys.exit(main())
