"""One call to another server: to an address that was looked at, within a time, with a bound on what is read."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpcore
import httpx

from service.outgoing.address import Address, AddressRefused, Private, Target, check, literal, target
from service.outgoing.retry import Answer

MOST_READ = 64 * 1024
SLICE_S = 0.25
CONNECT_S = 5.0

Resolve = Callable[[str, int], list[Address]]


class Unanswered(Exception):
    """There was no answer. The text says why."""


class Stopped(Exception):
    """The service stops: the call was broken off."""


@dataclass(frozen=True)
class Request:
    """What to post, and where."""

    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Bounds:
    """How long a call may take, which private addresses it may go to, and whether the service stops."""

    private: Private
    timeout_s: float
    stopping: Callable[[], bool] = lambda: False


def post(request: Request, bounds: Bounds, resolve: Resolve | None = None) -> Answer:
    """Posts, and gives the answer. Redirects are not followed, and no proxy is used.

    The name is looked up once, and the connection goes to an address that was looked at: a second look-up could give
    another one.

    Raises:
        AddressRefused: the address may not be called.
        Unanswered: no answer came, or not in time.
        Stopped: the service stops.
    """
    wanted = target(request.url)
    end = time.monotonic() + bounds.timeout_s
    addresses = check(wanted, _addresses(wanted, resolve or look_up), bounds.private)
    headers = {**request.headers, "Host": _authority(wanted), "Connection": "close", "User-Agent": "replaybench"}
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=_tls(), network_backend=_Backend(addresses, end, bounds.stopping)
            ) as pool,
            pool.stream("POST", request.url, headers=list(headers.items()), content=request.body) as response,
        ):
            body = _read(response.iter_stream())
            known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return Answer(response.status, known, body)
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise Unanswered(f"no answer within {bounds.timeout_s:g} s") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
        raise Unanswered(f"no connection to {wanted.host}:{wanted.port}: {_reason(error)}") from error


def look_up(host: str, port: int) -> list[Address]:
    """The addresses of a name.

    Raises:
        Unanswered: it has none, or nobody says.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unanswered(f"the name {host} is not found: {error}") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def _addresses(wanted: Target, resolve: Resolve) -> list[Address]:
    spelled = literal(wanted.host)
    return [spelled] if spelled is not None else resolve(wanted.host, wanted.port)


def _authority(wanted: Target) -> str:
    host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    usual = 443 if wanted.scheme == "https" else 80
    return host if wanted.port == usual else f"{host}:{wanted.port}"


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # the certificates that httpx goes by, and those of SSL_CERT_FILE


def _read(parts: Iterable[bytes]) -> bytes:
    body = b""
    for part in parts:
        body += part
        if len(body) >= MOST_READ:
            break
    return body[:MOST_READ]


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class _Backend(httpcore.NetworkBackend):
    """Connects to the first of these addresses that answers, whatever host is asked for."""

    def __init__(self, addresses: Sequence[Address], end: float, stopping: Callable[[], bool]) -> None:
        self._addresses, self._end, self._stopping = addresses, end, stopping
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002 -- the address of this very host was looked at
        port: int,
        timeout: float | None = None,  # noqa: ARG002 -- one end for all that the call does
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """The connection, as a stream that ends in time."""
        failed: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            left = min(CONNECT_S, _left(self._end, self._stopping))
            try:
                stream = self._plain.connect_tcp(str(address), port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
            else:
                return _Stream(stream, self._end, self._stopping)
        raise failed


class _Stream(httpcore.NetworkStream):
    """A stream whose every step ends in time. Slow answers, byte after byte, would reset a limit on single reads."""

    def __init__(self, inner: httpcore.NetworkStream, end: float, stopping: Callable[[], bool]) -> None:
        self._inner, self._end, self._stopping = inner, end, stopping

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        """What came, waiting in slices, so that a stop is noticed."""
        while True:
            left = _left(self._end, self._stopping)
            try:
                return self._inner.read(max_bytes, min(SLICE_S, left))
            except httpcore.ReadTimeout:
                continue

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        """Sends."""
        self._inner.write(buffer, _left(self._end, self._stopping))

    def close(self) -> None:
        """Ends the connection."""
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """The same stream under TLS, the certificate being the named host's."""
        left = min(CONNECT_S, _left(self._end, self._stopping))
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left), self._end, self._stopping)

    def get_extra_info(self, info: str) -> Any:
        """What is known of the socket."""
        return self._inner.get_extra_info(info)


def _left(end: float, stopping: Callable[[], bool]) -> float:
    if stopping():
        raise Stopped
    left = end - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout
    return left


__all__ = ["AddressRefused", "Bounds", "Request", "Stopped", "Unanswered", "look_up", "post"]
