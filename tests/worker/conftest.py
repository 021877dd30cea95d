"""The fixtures of the worker's tests."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.worker.support import Repository, StubService


@pytest.fixture
def boot() -> str:
    """A nonce as each worker process has: attempts of two workers with one would share their cgroups, and end them."""
    return secrets.token_hex(8)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def service() -> Iterator[StubService]:
    stub = StubService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, data = stub.answer(self.command, self.path, body)
            content = b"" if data is None else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = handle_any  # noqa: N815 - the base class names them so

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield stub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def uv() -> str:
    """The uv to test with."""
    found = os.environ.get("REPLAYBENCH_UV") or shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    assert Path(found).exists(), "no uv: put it on PATH or name it in REPLAYBENCH_UV"
    return found


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder whose built runtimes all tests use."""
    return tmp_path_factory.mktemp("cache")
