"""A service and workers as an operator runs them: each a process of its own, on a broker and a database of theirs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from service.database import upgrade
from service.dispatch.broker import Broker
from service.tokens import Scope, ensure, path
from tests.support import broker, embedded
from tests.support.broker import BrokerServer
from tests.support.postgres import free_port
from tests.support.system import Api
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
SHORT = {"REPLAYBENCH_LEASE_S": "4", "REPLAYBENCH_SWEEP_S": "0.3", "REPLAYBENCH_ADDRESS_RATE": "0"}


@dataclass
class Part:
    """A program that is started, killed, stopped for a while and started again."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.argv, cwd=ROOT, env=dict(self.env), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """Its process, which must be there."""
        assert self.process is not None, f"{self.name} does not run"
        return self.process

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self.running.send_signal(number)

    def end(self, number: int = signal.SIGKILL, deadline_s: float = 40.0) -> int:
        """Ends it by a signal, and gives its exit code."""
        self.send(signal.SIGCONT)
        self.send(number)
        return self.wait(deadline_s)

    def wait(self, deadline_s: float = 40.0) -> int:
        """Waits until it has ended by itself; its exit code."""
        code = self.running.wait(deadline_s)
        self.process = None
        return code

    def below(self) -> list[psutil.Process]:
        """The processes below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.running.pid).children(recursive=True)
        return []

    @property
    def said(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")


@dataclass
class Fleet(Api):
    """A running service with its broker, and as many workers as the test starts."""

    folder: Path
    broker: BrokerServer
    service: Part
    port: int
    http: httpx.Client
    workers: list[Part] = field(default_factory=list)

    @property
    def logs(self) -> Path:  # type: ignore[override]
        """Where its parts log."""
        return self.folder

    @property
    def url(self) -> str:
        """Where the service answers."""
        return f"http://127.0.0.1:{self.port}"

    def start_service(self) -> None:
        """Starts the service and waits until it is well."""
        self.service.start()
        wait_for(self.healthy, f"the service to be well; log in {self.service.log}", 60)

    def healthy(self) -> bool:
        """Whether the service says so."""
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/api/v1/health").status_code == 200
        return False

    def worker(self, name: str = "w1", *, start: bool = True, **env: str) -> Part:
        """A worker whose only runtime is this interpreter, which builds nothing, and that is ready."""
        given = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "BROKER_URL": self.broker.url,
            "REPLAYBENCH_SERVICE_URL": self.url,
            "REPLAYBENCH_WORKER_TOKEN_FILE": str(path(self.folder / "data", Scope.WORKER)),
            "REPLAYBENCH_WORKER_NAME": name,
            "REPLAYBENCH_CACHE_DIR": str(self.folder / f"cache-{name}"),
            "REPLAYBENCH_HOST_RUNTIMES": sys.executable,
            "REPLAYBENCH_BUILDS": "false",
            "REPLAYBENCH_KILL_GRACE_S": "0.5",
            "XDG_CONFIG_HOME": str(self.folder / f"config-{name}"),
        }
        wanted = {key: value for key, value in {**given, **env}.items() if value}
        part = Part(
            name, (sys.executable, "-u", "-m", "worker"), embedded.environment(**wanted), self.folder / f"{name}.log"
        )
        self.workers.append(part)
        if start:
            self.start(part)
        return part

    def broker_push(self, kind: str) -> None:
        """Wakes, as the service does."""
        sender = Broker(self.broker.url)
        sender.send([kind])
        sender.close()

    def start(self, part: Part) -> None:
        """Starts a worker and waits until it is ready once more."""
        before = part.said.count("worker ready") if part.log.exists() else 0
        part.start()
        wait_for(lambda: part.said.count("worker ready") > before, f"{part.name} to be ready; log in {part.log}", 60)


@contextmanager
def running(folder: Path, database_url: str = "", through: str = "", **env: str) -> Iterator[Fleet]:
    """A service on an empty database, SQLite where no other is named, with short periods. ``through`` is the broker's
    address as the service sees it, where that is another than the broker's own."""
    data = folder / "data"
    url = database_url or f"sqlite:///{data / 'replaybench.db'}"
    if database_url:
        upgrade(database_url)
    port = free_port()
    token = ensure(data).submit
    with broker.serving() as server, contextlib.ExitStack() as stack:
        own = {
            "DATABASE_URL": url,
            "BROKER_URL": through or server.url,
            "REPLAYBENCH_DATA_DIR": str(data),
            "REPLAYBENCH_PORT": str(port),
        }
        argv = (sys.executable, "-u", "-m", "service.cli.main", "serve")
        service = Part("service", argv, embedded.environment(**{**own, **SHORT, **env}), folder / "service.log")
        headers = {"Authorization": f"Bearer {token}"}
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
        fleet = Fleet(folder, server, service, port, stack.enter_context(http))
        try:
            fleet.start_service()
            yield fleet
        finally:
            for part in (*fleet.workers, service):
                if part.process is not None:
                    part.end()
