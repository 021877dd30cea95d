"""``python -m worker``: look at what this machine has, register, and serve cells until told to stop."""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import signal
import sys
import threading
from types import FrameType

import structlog

from worker import gpu
from worker.attempt import Host
from worker.boot_folder import BootFolder
from worker.client import Client, ServiceError
from worker.devices import DevicePool
from worker.host_runtime import probe_hosts
from worker.membership import Membership
from worker.messages import CONTRACT, Capabilities, Registration
from worker.runtime import Tools
from worker.serve import Server, kinds
from worker.settings import Settings, SettingsError, load
from worker.tasks import consume, make_app, stop_consuming

log = structlog.get_logger()

_PR_SET_DUMPABLE = 4


def main() -> int:
    """Run a worker. The exit code: 0 when stopped, 2 when it cannot start."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    try:
        return _Worker(load()).run()
    except (SettingsError, ServiceError) as error:
        sys.stderr.write(f"replaybench worker: {error}\n")
        return 2


def _say_ready() -> None:
    sys.stdout.write("worker ready\n")
    sys.stdout.flush()


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
        self.hosts = probe_hosts(settings.host_runtimes)
        self.slots = max(len(self.devices), settings.cpu_slots)
        self.kinds = kinds(settings, self.devices)
        cache, boot = settings.cache_dir, secrets.token_hex(8)
        cache.mkdir(parents=True, exist_ok=True)
        self.attempts = BootFolder(cache / "attempts", boot)
        self.spools = BootFolder(cache / "spool", boot)
        self.membership = Membership(self.client, self.registration(boot), self.stopping)

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
        tools = Tools(settings.uv_command, settings.cache_dir, settings.build_timeout_s, settings.builds)
        spools = self.spools.dead()
        leftovers = [path for folder in spools for path in sorted(folder.path.glob("*.jsonl"))]
        if not self.membership.enter(leftovers):
            return None
        for folder in [*spools, *self.attempts.dead()]:
            folder.remove()
        self.membership.beat_in_background()
        host = Host(
            settings=settings,
            client=self.client,
            tools=tools,
            hosts=self.hosts,
            folder=self.attempts.path,
            spool=self.spools.path,
            heartbeat_s=self.membership.registered.heartbeat_s,
            stopping=self.stopping,
        )
        pool = DevicePool(self.devices, settings.cache_dir / "devices")
        return Server(host, self.membership, pool, self.devices, self.slots)

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
