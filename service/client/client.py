"""A typed, synchronous client of the service's API."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from service.access.schemas import NewToken, TokenInput, TokenOutput
from service.audit.schemas import AuditOutput
from service.client.errors import ClientError, InputError, ProblemError, UnreachableError
from service.client.events import Event, parse
from service.compare.schemas import CompareOutput, HistoryEntry
from service.hooks.schemas import ApproveInput, HookSecretOutput
from service.hooks.schemas import DeliveryOutput as HookDelivery
from service.imports.schemas import ImportInput
from service.jobs.schemas import CancelOutput, CellOutput, JobInput, JobOutput, PlanOutput, RerunInput, Snapshot
from service.repositories.schemas import (
    CredentialInput,
    CredentialOutput,
    RepositoryInput,
    RepositoryOutput,
    RepositoryRemoved,
)
from service.results.schemas import AttemptOutput, CaseOutput, TableOutput
from service.schemas import Input, Page
from service.statuses.schemas import ForgeInput, ForgeOutput, StatusOutput
from service.webhooks.schemas import DeliveryOutput, RotationInput, WebhookInput, WebhookMade, WebhookOutput
from service.workers.schemas import EnrolmentInput, WorkerOutput

T = TypeVar("T")
S = TypeVar("S", bound=Input)

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
STREAM_SILENCE_S = 45.0  # three times the service's keep-alive
AWAY = frozenset({429, 502, 503, 504})
AWAY_CODES = frozenset({"no-problem-document", "database-unavailable"})
"""What a proxy says without the service, and the service without its database. Other errors stay when asked again."""
SEND_AGAIN_S = (0.5, 2.0)


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own."""
    return urlsplit(url).hostname in LOOPBACK


class Client:
    """One service. ``url`` may carry a path, for a service behind a proxy's prefix.

    ``patience_s`` is how long a broken live stream is tried again before it counts as gone.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout_s: float = 60.0, patience_s: float = 60.0
    ) -> None:
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        try:
            self._http = httpx.Client(
                base_url=f"{self.url}/api/v1/",
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=timeout_s,
                trust_env=not is_loopback(url),  # a proxy set for the outside world cannot reach this machine
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ClientError(f"address {url!r} is not usable: {error}; give it as http://HOST:PORT") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def page(self, path: str) -> str:
        """The full address of a page, as answers name them from the service's own root on."""
        return f"{self.url}{path}" if path.startswith("/") else path

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def health(self) -> dict[str, Any]:
        """The service's word on itself; needs no token."""
        return self._get(dict[str, Any], "health")

    def repositories(self) -> list[RepositoryOutput]:
        """The registered repositories."""
        return self._get(list[RepositoryOutput], "repositories")

    def add_repository(self, name: str, url: str, forge: ForgeInput | None = None) -> RepositoryOutput:
        """Registers a git URL under a short name, and where its commits get their statuses.

        Raises:
            InputError: name or URL cannot be one.
        """
        body = _input(RepositoryInput, name=name, url=url, forge=forge)
        return self._post(RepositoryOutput, "repositories", body.model_dump(mode="json"))

    def remove_repository(self, name: str, *, force: bool = False) -> RepositoryRemoved:
        """Removes a repository; one with jobs, which are kept, only by force. Asks for the scope ``admin``."""
        path = f"repositories/{quote(name, safe='')}"
        return _parse(RepositoryRemoved, self._send("DELETE", path, params={"force": force}).content, path)

    def set_forge(self, name: str, forge: ForgeInput) -> ForgeOutput:
        """Says where a repository's commits get their statuses."""
        path = f"repositories/{quote(name, safe='')}/forge"
        return _parse(ForgeOutput, self._send("PUT", path, json=forge.model_dump(mode="json")).content, path)

    def remove_forge(self, name: str) -> None:
        """Forgets a repository's forge and its credential."""
        self._send("DELETE", f"repositories/{quote(name, safe='')}/forge")

    def set_credential(self, name: str, credential: CredentialInput) -> CredentialOutput:
        """Gives a private repository what opens it."""
        path = f"repositories/{quote(name, safe='')}/credential"
        return _parse(CredentialOutput, self._send("PUT", path, json=credential.model_dump(mode="json")).content, path)

    def remove_credential(self, name: str) -> None:
        """Forgets a repository's credential."""
        self._send("DELETE", f"repositories/{quote(name, safe='')}/credential")

    def statuses(
        self, *, repository: str | None = None, limit: int = 50, before: str | None = None
    ) -> Page[StatusOutput]:
        """What forges are told of commits, the latest changed first; ``before`` is as the page before names it."""
        return self._get(Page[StatusOutput], "statuses", repository=repository, limit=limit, before=before)

    def redeliver_status(self, status: int) -> StatusOutput:
        """Tells a forge again."""
        return self._post(StatusOutput, f"statuses/{status}/redeliver", {})

    def webhooks(self) -> list[WebhookOutput]:
        """Every webhook."""
        return self._get(list[WebhookOutput], "webhooks")

    def add_webhook(self, webhook: WebhookInput) -> WebhookMade:
        """Registers a URL to be told of events; the answer has its secret."""
        return self._post(WebhookMade, "webhooks", webhook.model_dump(mode="json"))

    def remove_webhook(self, webhook: int) -> None:
        """Forgets a webhook with its deliveries."""
        self._send("DELETE", f"webhooks/{webhook}")

    def rotate_webhook(self, webhook: int, rotation: RotationInput) -> WebhookMade:
        """Gives a webhook another secret."""
        return self._post(WebhookMade, f"webhooks/{webhook}/secret", rotation.model_dump(mode="json"))

    def enable_webhook(self, webhook: int) -> WebhookOutput:
        """Sends to a disabled webhook again."""
        return self._post(WebhookOutput, f"webhooks/{webhook}/enable", {})

    def deliveries(
        self, *, webhook: int | None = None, limit: int = 50, before: int | None = None
    ) -> Page[DeliveryOutput]:
        """The latest deliveries, newest first."""
        return self._get(Page[DeliveryOutput], "webhooks/deliveries", webhook=webhook, limit=limit, before=before)

    def redeliver(self, delivery: int) -> DeliveryOutput:
        """Sends a delivery again."""
        return self._post(DeliveryOutput, f"webhooks/deliveries/{delivery}/redeliver", {})

    def submit(self, job: JobInput) -> JobOutput:
        """Submits a job; ``dry_run`` of the input is ignored. What gets no answer is sent again: it makes one job."""
        return self._make_job("jobs", json=job.model_dump(mode="json") | {"dry_run": False})

    def import_report(self, report: bytes, about: ImportInput) -> JobOutput:
        """Imports a JUnit report of a run elsewhere, as a job that has ended. Sent again as ``submit`` does."""
        query = about.model_dump(mode="json", exclude_none=True)
        headers = {"Content-Type": "application/xml"}
        return self._make_job("imports", content=report, params=query, headers=headers)

    def _make_job(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> JobOutput:
        headers = {**(headers or {}), "Idempotency-Key": uuid.uuid4().hex}
        for delay in SEND_AGAIN_S:
            try:
                return _parse(JobOutput, self._send("POST", path, headers=headers, **body).content, path)
            except UnreachableError as error:
                if isinstance(error.__cause__, httpx.ConnectError):  # nothing was sent: no use in waiting
                    raise
            except ProblemError as error:
                if error.status not in AWAY or error.code not in AWAY_CODES:
                    raise
            time.sleep(delay)
        return _parse(JobOutput, self._send("POST", path, headers=headers, **body).content, path)

    def plan(self, job: JobInput) -> PlanOutput:
        """What a job would become; nothing is stored."""
        return self._post(PlanOutput, "jobs", job.model_dump(mode="json") | {"dry_run": True})

    def jobs(self, *, limit: int = 50, before: int | None = None) -> Page[JobOutput]:
        """The latest jobs, newest first."""
        return self._get(Page[JobOutput], "jobs", limit=limit, before=before)

    def job(self, job: int) -> JobOutput:
        """A job as it stands."""
        return self._get(JobOutput, f"jobs/{job}")

    def cells(self, job: int) -> list[CellOutput]:
        """A job's cells, in the job's order."""
        return self._get(list[CellOutput], f"jobs/{job}/cells")

    def table(self, job: int) -> TableOutput:
        """A job's table."""
        return self._get(TableOutput, f"jobs/{job}/table", format="json")

    def table_text(self, job: int, form: str) -> str:
        """A job's table as the service writes it: ``json``, ``markdown`` or ``csv``."""
        return self._send("GET", f"jobs/{job}/table", params={"format": form}).text

    def junit(self, *, job: int | None = None, attempt: int | None = None) -> str:
        """A job's or an attempt's cases as JUnit XML."""
        return self._send("GET", f"jobs/{job}/junit.xml" if attempt is None else f"attempts/{attempt}/junit.xml").text

    def cancel(self, job: int) -> CancelOutput:
        """Cancels a job."""
        return self._post(CancelOutput, f"jobs/{job}/cancel", {})

    def rerun(self, job: int, cells: list[int] | None = None) -> JobOutput:
        """Queues cells again: these, or those that ended without passing.

        Raises:
            InputError: a cell's number cannot be one, or there are too many.
        """
        return self._post(JobOutput, f"jobs/{job}/rerun", _input(RerunInput, cells=cells).model_dump())

    def approve(self, job: int, by: str | None = None) -> JobOutput:
        """Lets a job of a fork's pull request run.

        Raises:
            InputError: ``by`` is too long a name.
        """
        return self._post(JobOutput, f"jobs/{job}/approve", _input(ApproveInput, approved_by=by).model_dump())

    def add_hook_secret(self, repository: str) -> HookSecretOutput:
        """A new secret for a repository's webhook, told this once."""
        return self._post(HookSecretOutput, f"repositories/{repository}/hook-secrets", {})

    def drop_hook_secret(self, repository: str, secret: int) -> None:
        """Forgets a secret of a repository's webhook."""
        self._send("DELETE", f"repositories/{quote(repository, safe='')}/hook-secrets/{secret}")

    def hook_deliveries(self, *, limit: int = 50, before: int | None = None) -> Page[HookDelivery]:
        """What forges told the service and what became of it, the latest first."""
        return self._get(Page[HookDelivery], "hooks/deliveries", limit=limit, before=before)

    def redeliver_hook(self, delivery: int) -> HookDelivery:
        """Does again what a forge's delivery asked for."""
        return self._post(HookDelivery, f"hooks/deliveries/{delivery}/redeliver", {})

    def cell(self, cell: int) -> CellOutput:
        """A cell as it stands."""
        return self._get(CellOutput, f"cells/{cell}")

    def attempts(self, cell: int) -> list[AttemptOutput]:
        """A cell's attempts, earliest first."""
        return self._get(list[AttemptOutput], f"cells/{cell}/attempts")

    def attempt(self, attempt: int) -> AttemptOutput:
        """An attempt as it stands."""
        return self._get(AttemptOutput, f"attempts/{attempt}")

    def cases(self, attempt: int, *, outcome: str | None = None, last: bool = True) -> Iterator[CaseOutput]:
        """The cases of an attempt, page after page. ``last`` leaves out observations that a later one replaced."""
        query: dict[str, str | int | bool | None] = {"outcome": outcome, "last": last, "limit": 200}
        while True:
            page = self._get(Page[CaseOutput], f"attempts/{attempt}/cases", **query)
            yield from page.items
            if page.next is None:
                return
            key, _, value = page.next.partition("=")
            query[key] = value

    def compare(
        self,
        *,
        repository: str | None = None,
        base: str | None = None,
        head: str | None = None,
        job: int | None = None,
        change: str | None = None,
        after: str | None = None,
        limit: int = 200,
    ) -> CompareOutput:
        """Two trees, case by case, with one page of the cases."""
        query = {"repository": repository, "base": base, "head": head, "job": job, "change": change, "after": after}
        return self._get(CompareOutput, "compare", **query, limit=limit)

    def history(
        self, repository: str, node_id: str, *, suite: str | None = None, before: int | None = None, limit: int = 50
    ) -> Page[HistoryEntry]:
        """What deciding attempts observed of a case, newest first."""
        query = {"repository": repository, "node_id": node_id, "suite": suite, "before": before, "limit": limit}
        return self._get(Page[HistoryEntry], "history", **query)

    def artifact(self, artifact: int) -> bytes:
        """An artifact's bytes."""
        return self._send("GET", f"artifacts/{artifact}").content

    def workers(self) -> list[WorkerOutput]:
        """The workers that ever registered."""
        return self._get(list[WorkerOutput], "workers")

    def enroll_worker(self, enrolment: EnrolmentInput) -> NewToken:
        """Makes a token that a worker exchanges for its own, once; asks for the scope ``admin``."""
        return self._post(NewToken, "workers/enrolments", enrolment.model_dump(mode="json"))

    def tokens(self) -> list[TokenOutput]:
        """Every token that was ever made, the newest first; asks for the scope ``admin``."""
        return self._get(list[TokenOutput], "tokens")

    def create_token(self, token: TokenInput) -> NewToken:
        """Makes a token. The answer is the only one that holds it."""
        return self._post(NewToken, "tokens", token.model_dump(mode="json"))

    def revoke_token(self, token: int) -> TokenOutput:
        """Ends a token for good."""
        return self._post(TokenOutput, f"tokens/{token}/revoke", {})

    def audit(
        self, *, limit: int = 50, before: int | None = None, subject: str | None = None, prefix: str | None = None
    ) -> Page[AuditOutput]:
        """The latest changes, newest first: of everything, of one subject (``job 12``), or by one token."""
        return self._get(Page[AuditOutput], "audit", limit=limit, before=before, subject=subject, prefix=prefix)

    def follow(self, job: int) -> Iterator[Snapshot]:
        """A job's live stream, until it has ended. A broken connection is taken up again where it was.

        Raises:
            UnreachableError: the service stayed away for longer than ``patience_s``.
            ProblemError: the service refused.
        """
        last_id: str | None = None
        seen = time.monotonic()
        delay = 0.2
        while True:
            try:
                for event in self._events(f"jobs/{job}/stream", last_id):
                    seen, delay, last_id = time.monotonic(), 0.2, event.id
                    if event.name == "end":
                        return
                    yield _parse(Snapshot, event.data, "stream")
                reason = "the stream ended early"
            except httpx.TransportError as error:
                reason = _reason(error)
            except ProblemError as error:
                if error.status not in AWAY:
                    raise
                reason = str(error)
            if time.monotonic() - seen > self._patience_s:
                raise UnreachableError(self.url, reason)
            time.sleep(delay)
            delay = min(2 * delay, 5.0)

    def _events(self, path: str, last_id: str | None) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        timeout = httpx.Timeout(10.0, read=STREAM_SILENCE_S)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code >= 300:
                response.read()
                raise _problem(response)
            yield from parse(response.iter_lines(), last_id)

    def _get(self, shape: type[T], path: str, **query: str | int | bool | None) -> T:
        params = {key: value for key, value in query.items() if value is not None}
        return _parse(shape, self._send("GET", path, params=params).content, path)

    def _post(self, shape: type[T], path: str, body: dict[str, Any]) -> T:
        return _parse(shape, self._send("POST", path, json=body).content, path)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx.UnsupportedProtocol as error:
            raise ClientError(f"address {self.url!r} is not usable: {error}; give it as http://HOST:PORT") from error
        except httpx.TransportError as error:
            raise UnreachableError(self.url, _reason(error)) from error
        if response.status_code >= 300:
            raise _problem(response)
        return response


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _input(shape: type[S], **values: Any) -> S:
    """A request's body, of what the caller gave."""
    try:
        return shape(**values)
    except ValidationError as error:
        raise InputError(error.errors()) from error


def _parse(shape: type[T], data: str | bytes, where: str) -> T:
    try:
        return TypeAdapter(shape).validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ClientError(
            f"the service's answer to {where} is not what this client expects ({place}: {first['msg']}); "
            "do both have the same version, and is the address the service's own?"
        ) from error


def _problem(response: httpx.Response) -> ProblemError:
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict) or "code" not in body:
        detail = f"{response.request.url} answered without a problem document; is the address the service's own?"
        return ProblemError(response.status_code, "no-problem-document", detail)
    extra = {key: value for key, value in body.items() if key not in {"type", "title", "status", "code", "detail"}}
    detail = str(body.get("detail") or body.get("title"))
    # Whoever has tokens of two services may have asked the wrong one.
    if response.status_code == httpx.codes.UNAUTHORIZED:
        detail = f"{_origin(response.request.url)}: {detail}"
    return ProblemError(response.status_code, str(body["code"]), detail, extra)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"
