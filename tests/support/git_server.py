"""git over HTTP for the tests: git's own `http-backend` behind a small server with Basic authentication."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class GitServer:
    """Serves the repositories below ``root``. ``user`` and ``token`` open it, where there is a token.

    ``moved`` sends paths that begin with a key on to the address of its value. ``stall_after`` is how many bytes of a
    pack are sent before the server falls silent, until ``released``.
    """

    root: Path
    user: str = ""
    token: str = ""
    moved: dict[str, str] = field(default_factory=dict)
    stall_after: int | None = None
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def tokens_seen(self) -> set[str | None]:
        """Every Authorization header that came, and ``None`` where none did."""
        return {header for _, header in self.asked}

    @property
    def header(self) -> str:
        """The Authorization header that opens it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.token}".encode()).decode()


@contextmanager
def serving(root: Path, user: str = "", token: str = "") -> Iterator[GitServer]:
    """A server for as long as the context lasts."""
    it = GitServer(root, user, token)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            it.asked.append((self.path, self.headers.get("Authorization")))
            for start, target in it.moved.items():
                if self.path.startswith(start):
                    self.send_response(302)
                    self.send_header("Location", target + self.path.removeprefix(start))
                    self.end_headers()
                    return
            if it.token and self.headers.get("Authorization") != it.header:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
            self.backend()

        do_GET = do_POST = answer  # noqa: N815 - the base class names them so

        def backend(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            env = {
                "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(it.root), "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
            }  # fmt: skip
            done = subprocess.run(["git", "http-backend"], input=body, capture_output=True, env=env, check=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if it.stall_after is not None and b"PACK" in content:
                self.wfile.write(content[: it.stall_after])
                self.wfile.flush()
                it.stalled.set()
                it.released.wait(60)
                content = content[it.stall_after :]
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    it.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        it.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
