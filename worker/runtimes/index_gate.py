"""Fetches from package indexes that ask for a password, on behalf of a uv that must not know it.

uv starts build backends, which are a tree's own code, as the same user and in the same sandbox: whatever uv knows, they
know. So the worker itself knows the password, and answers on loopback as the index would. Through a gate come the pages
below the index's address and the files that these link to, to be read and nothing else, and only while an install line
runs. An address of the gate stays the same for a repository as long as the worker lives, since uv's cache goes by it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import structlog

from worker.runtimes.index_credentials import Source, without_credentials
from worker.runtimes.index_pages import is_page, led

log = structlog.get_logger()

_LOOPBACK = "127.0.0.1"
_ASKED = ("accept", "user-agent", "range", "if-range", "if-none-match", "if-modified-since", "cache-control")
_ANSWERED = ("content-type", "content-length", "content-encoding", "content-range", "accept-ranges", "etag",
             "last-modified", "cache-control", "retry-after")  # fmt: skip
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_TIMEOUT_S = 60.0
_MOST_CONNECTIONS = 256
"""At once, of all install lines; one uv has some fifty."""
_METADATA = ".metadata"
"""What PEP 658 adds to a file's address for its metadata."""


@dataclass
class _Door:
    """The way to one place: what is asked for there, and how."""

    source: Source
    address: str
    client: httpx.Client
    linked: set[str]
    """The paths of files that its pages have linked to, those that uv has in its cache among them."""

    def admits(self, path: str) -> bool:
        """Whether a path is the place's own, below it, or was linked to."""
        own, path = unquote(urlsplit(self.source.url).path), unquote(path)  # uv may write it in another way.
        if any(part in (".", "..") for part in path.split("/")):
            return False
        known = path.removesuffix(_METADATA) in self.linked or path in self.linked
        return known or path == own or path.startswith(own.rstrip("/") + "/")

    def fetch(
        self, method: str, target: str, asked: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        """Ask there, with the credentials."""
        headers = {name: asked[name] for name in _ASKED if name in asked}
        headers["accept-encoding"] = "gzip" if "gzip" in asked.get("accept-encoding", "") else "identity"
        auth = httpx.BasicAuth(self.source.user, self.source.password) if _has_user(self.source) else None
        return self.client.stream(method, _origin(self.source.url) + target, headers=headers, auth=auth)

    def lead(self, link: str) -> str:
        """A link's address for uv: through this door, where it leads to the same server."""
        parts = urlsplit(link)
        if _origin(link) != _origin(self.source.url):
            return link
        self.linked.add(unquote(parts.path))
        return self.address + parts._replace(scheme="", netloc="").geturl()


class IndexGate:
    """The gate of one worker. It listens from its first use on."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._doors: dict[str, _Door] = {}
        self._linked: dict[str, set[str]] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def opened(self, env: Mapping[str, str], whose: str, folder: Path) -> Iterator[dict[str, str]]:
        """The variables of uv without credentials, good as long as this lasts. ``whose`` is the repository; copies of
        configuration files go to ``folder``."""
        with contextlib.ExitStack() as stack:
            mine: set[str] = set()

            def address(source: Source) -> str:
                name = hmac.new(self._secret, repr((whose, source)).encode(), hashlib.sha256).hexdigest()[:32]
                if name not in mine:
                    self._open(name, source, env)
                    stack.callback(self._close, name)
                    mine.add(name)
                return self._doors[name].address + urlsplit(source.url)._replace(scheme="", netloc="").geturl()

            told = without_credentials(env, address, folder)
            yield told | _past_proxies(told) if mine else told

    def door(self, name: str) -> _Door | None:
        """An open door by its name."""
        return self._doors.get(name)

    def close(self) -> None:
        """Listen no more."""
        with self._lock:
            if self._server is not None:
                self._server.shutdown()
                self._server.server_close()
                self._server = None

    def _open(self, name: str, source: Source, env: Mapping[str, str]) -> None:
        with self._lock:
            if self._server is None:
                self._server = _serving(self)
            if name not in self._doors:
                address = f"http://{_LOOPBACK}:{self._server.server_port}/{name}"
                self._doors[name] = _Door(source, address, _client(source, env), self._linked.setdefault(name, set()))
            self._users[name] += 1

    def _close(self, name: str) -> None:
        with self._lock:
            self._users[name] -= 1
            if not self._users[name]:
                self._doors.pop(name).client.close()


def _serving(gate: IndexGate) -> ThreadingHTTPServer:
    class Handler(_Handler):
        doors = gate

    server = _Server((_LOOPBACK, 0), Handler)
    threading.Thread(target=server.serve_forever, name="index-gate", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """A tree's code reaches it, so it takes no more connections at once than uv has use for."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        log.debug("gate: a connection broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S
    doors: IndexGate

    def answer(self) -> None:
        """Fetch what is asked for through the door that the address names."""
        _, name, rest = (*self.path.split("/", 2), "", "")[:3]
        door, target = self.doors.door(name), f"/{rest}"
        if door is None or not door.admits(urlsplit(target).path):
            self._say(HTTPStatus.FORBIDDEN, b"the gate to this index is closed, or this is no page or file of it\n")
            return
        asked = {key.lower(): value for key, value in self.headers.items()}
        self.began = False
        try:
            with door.fetch(self.command, target, asked) as response:
                self._hand_on(door, response)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            log.warning("index not reached", index=door.source.url, error=str(error) or type(error).__name__)
            self.close_connection = True
            if not self.began:
                self._say(HTTPStatus.BAD_GATEWAY, f"{type(error).__name__}: {error}\n".encode())
        except OSError:
            self.close_connection = True  # uv has gone.

    do_GET = do_HEAD = answer  # noqa: N815 - the base class names them so

    def _hand_on(self, door: _Door, response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "")
        if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            log.warning("index refuses the worker's credentials", index=door.source.url, status=response.status_code)
        if response.is_success and self.command == "GET" and is_page(kind):
            response.read()
            page = led(kind, response.text, str(response.url), door.lead)
            self._say(HTTPStatus(response.status_code), page.encode(), f"{kind.partition(';')[0]}; charset=utf-8")
            return
        self.began = True
        self.send_response(response.status_code)
        for key in _ANSWERED:
            if key in response.headers:
                self.send_header(key, response.headers[key])
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            for data in response.iter_raw():
                self.wfile.write(data)

    def _say(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _has_user(source: Source) -> bool:
    return bool(source.user or source.password)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _past_proxies(env: Mapping[str, str]) -> dict[str, str]:
    """The gate is not asked by way of a proxy to the outside."""
    if not any(env.get(name) or env.get(name.upper()) for name in _PROXIES):
        return {}
    none = ",".join(filter(None, [env.get("NO_PROXY") or env.get("no_proxy") or "", _LOOPBACK]))
    return {"NO_PROXY": none, "no_proxy": none}


def _client(source: Source, env: Mapping[str, str]) -> httpx.Client:
    """A client that reaches a place as uv would: its certificates, its proxies, and whom it trusts without any."""
    parts = urlsplit(source.url)
    insecure = {parts.netloc, parts.hostname} & set(env.get("UV_INSECURE_HOST", "").replace(",", " ").split())
    context = httpx.create_ssl_context(verify=not insecure)
    if bundle := env.get("SSL_CERT_FILE"):
        context.load_verify_locations(bundle)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if certificate := env.get("SSL_CLIENT_CERT"):
        context.load_cert_chain(certificate)
    return httpx.Client(verify=context, follow_redirects=True, timeout=_TIMEOUT_S, mounts=_mounts(env, context))


def _mounts(env: Mapping[str, str], context: ssl.SSLContext) -> dict[str, httpx.HTTPTransport] | None:
    """The proxy that pip is configured with, which no variable of the worker names."""
    proxy = env.get("HTTPS_PROXY")
    return {"https://": httpx.HTTPTransport(proxy=proxy, verify=context)} if proxy else None
