"""Speaks HTTP with the service: the four calls of ``messages.py``, and problem documents as typed errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from worker.encoding import decode, encode
from worker.messages import (
    Assignment,
    Batch,
    BatchAnswer,
    Claim,
    Enrolled,
    Enrolment,
    Heartbeat,
    Registered,
    Registration,
)

T = TypeVar("T")

_LONGEST_S = 60.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ServiceError(Exception):
    """The service said no, or could not be asked."""


class Fenced(ServiceError):
    """The lease is lost: stop, and send nothing more of this attempt."""


class BatchGap(ServiceError):
    """A batch number was skipped."""

    def __init__(self, expected: int) -> None:
        super().__init__(f"the service expects batch {expected}")
        self.expected = expected


class ContractMismatch(ServiceError):
    """Service and worker speak different versions of the contract: bring both to one release."""


class TooLarge(ServiceError):
    """The service takes no body of this size."""


class Refused(ServiceError):
    """The service refuses for a reason that trying again does not change."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def unwelcome(self) -> bool:
        """Whether it is this worker that is refused, and not this call: its token is revoked, or another worker's."""
        return self.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Retryable(ServiceError):
    """The service is away or busy: the same call may succeed later."""

    def __init__(self, text: str, after_s: float | None = None, *, broke: bool = False) -> None:
        super().__init__(text)
        self.after_s = after_s
        self.broke = broke
        """The service was there and broke over this very call (500)."""


class Client:
    """The worker's calls to one service. Safe to use from several threads."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/api/v1/worker",
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(20.0, connect=5.0),
            transport=transport,
            trust_env=urlsplit(url).hostname not in _LOOPBACK,  # A proxy to the outside does not reach this machine.
        )

    def close(self) -> None:
        self._http.close()

    def enroll(self, enrolment: Enrolment) -> Enrolled:
        return self._answer(Enrolled, self._call("POST", "/enroll", json=encode(enrolment)))

    def register(self, registration: Registration) -> Registered:
        return self._answer(Registered, self._call("POST", "/register", json=encode(registration)))

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self._call("POST", "/heartbeat", json=encode(heartbeat))

    def claim(self, claim: Claim) -> Assignment | None:
        response = self._call("POST", "/claim", json=encode(claim))
        return None if response.status_code == HTTPStatus.NO_CONTENT else self._answer(Assignment, response)

    def post(self, attempt: int, batch: Batch) -> BatchAnswer:
        return self._answer(BatchAnswer, self._call("POST", f"/attempts/{attempt}/batches", json=encode(batch)))

    def put_artifact(self, attempt: int, name: str, token: str, content: bytes) -> None:
        self._call("PUT", f"/attempts/{attempt}/artifacts/{name}", content=content, headers={"X-Lease": token})

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **more)
        except httpx.RequestError as error:
            raise Retryable(
                f"{method} {self._http.base_url}{path.lstrip('/')}: {error or type(error).__name__}"
            ) from error
        if response.is_success:
            return response
        raise _problem(response)

    def _answer(self, shape: type[T], response: httpx.Response) -> T:
        try:
            return decode(shape, response.json())
        except ValueError as error:
            raise Refused(
                response.status_code, f"{response.url}: no {shape.__name__} in the answer: {error}"
            ) from error


def _problem(response: httpx.Response) -> ServiceError:
    try:
        body = response.json()
    except ValueError:
        body = {}
    document = body if isinstance(body, dict) else {}
    code, status = document.get("code"), response.status_code
    said = document.get("detail") or document.get("title") or response.text[:200]
    text = f"{response.request.method} {response.url}: {status} {code or ''} {said}"
    if code == "fenced" or status == HTTPStatus.GONE:
        return Fenced(text)
    if code == "batch-gap" and isinstance(document.get("expected"), int):
        return BatchGap(document["expected"])
    if code == "contract-mismatch":
        return ContractMismatch(text)
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLarge(text)
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT) or status >= 500:
        return Retryable(text, _retry_after(response), broke=status == HTTPStatus.INTERNAL_SERVER_ERROR)
    return Refused(status, text)


def _retry_after(response: httpx.Response) -> float | None:
    """What the service asks for, within reason: a proxy that asks for a day must not cost the leases of that day."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_S) if text.isdigit() else None
