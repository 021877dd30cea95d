"""Networks that misbehave, on loopback: one that swallows what it carries, one that doubles and reorders requests."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


class Tunnel:
    """Carries TCP connections to a port of this machine. ``swallow`` makes those that are open into black holes: they
    stay open, and nothing gets through any more; new ones are carried."""

    def __init__(self, target: int, context: ssl.SSLContext | None = None, cut: bytes | None = None) -> None:
        self._target, self._context, self._cut = target, context, cut
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._holes: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> int:
        """Makes black holes of the connections that are open; how many."""
        with self._lock:
            holes, self._open = list(self._open), set()
        self._holes += holes
        return len(holes)

    def close(self) -> None:
        """Ends it all."""
        with self._lock:
            pairs = [*self._open, *self._holes]
        for one in (self._server, *(end for pair in pairs for end in pair)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                if self._context is not None:
                    near = self._context.wrap_socket(near, server_side=True)
                far = socket.create_connection(("127.0.0.1", self._target), 5.0)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            pair = (near, far)
            with self._lock:
                self._open.add(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._carry, args=(pair, source, sink), daemon=True).start()

    def _carry(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if pair not in self._open:  # it leads into a black hole
                        continue
                if self._cut is not None and self._cut in data:
                    break
                sink.sendall(data)
        with self._lock:
            if pair not in self._open:
                return
            self._open.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def tunnel(target: int, context: ssl.SSLContext | None = None, cut: bytes | None = None) -> Iterator[Tunnel]:
    """A tunnel for as long as the context lasts. With a context it ends TLS; ``cut`` breaks a connection on which these
    bytes come."""
    made = Tunnel(target, context, cut)
    try:
        yield made
    finally:
        made.close()


@dataclass
class Mischief:
    """What a bad proxy does to the calls that report attempts, in turn: ``pass``; ``double``: sent on twice;
    ``lose``: sent on, and the answer lost; ``late``: answered 503, and sent on only after two later calls went through.
    """

    url: str = ""
    turns: tuple[str, ...] = ("pass", "double", "lose", "late")
    done: list[str] = field(default_factory=list)
    held: list[tuple[int, httpx.Request]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def turn(self, path: str, request: httpx.Request) -> tuple[str, list[httpx.Request]]:
        """What becomes of a call, and which earlier ones are to be sent on behind it."""
        if "/attempts/" not in path:
            return "pass", []
        with self.lock:
            turn = self.turns[len(self.done) % len(self.turns)]
            self.done.append(turn)
            place = len(self.done)
            overdue = [late for due, late in self.held if due <= place]
            self.held = [(due, late) for due, late in self.held if due > place]
            if turn == "late":
                self.held.append((place + 2, request))
            return turn, overdue


class _Handler(BaseHTTPRequestHandler):
    """Passes calls on, by what is due next."""

    protocol_version = "HTTP/1.1"
    state: Mischief
    client: httpx.Client

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {key: value for key, value in self.headers.items() if key.lower() not in {"host", "connection"}}
        request = self.client.build_request(self.command, self.path, content=body, headers=headers)
        turn, overdue = self.state.turn(self.path, request)
        if turn == "late":
            self.answer(503, b"{}")
            return
        answer = self.client.send(request)
        if turn == "double":
            answer = self.client.send(request)
        for late in overdue:
            self.client.send(late)
        if turn == "lose":
            self.close_connection = True
        else:
            self.answer(answer.status_code, answer.content)

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - the base class names them so

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def mischief(target: str) -> Iterator[Mischief]:
    """Such a proxy before a service, for as long as the context lasts."""
    state = Mischief()
    with httpx.Client(base_url=target, timeout=30, trust_env=False) as client:
        handler = type("Handler", (_Handler,), {"state": state, "client": client})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
