"""The whole embedded system, driven through its API."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from service.states import ENDED_JOB_STATES
from service.tokens import Scope, path
from tests.support import embedded
from tests.support.embedded import Embedded
from tests.support.waiting import wait_for


class Api:
    """A service that may be away for moments, as people speak to it. ``http`` carries the submit token."""

    http: httpx.Client
    logs: Path

    def get(self, where: str) -> Any:
        """Gets from the API, waiting while the service is being started again."""

        def answer() -> httpx.Response | None:
            try:
                found = self.http.get(f"/api/v1{where}")
            except httpx.TransportError:
                return None
            return found if found.status_code < 500 else None

        found = wait_for(answer, f"{where} to be answered")
        assert found.status_code == 200, found.text
        return found.json()

    def post(self, where: str, body: Any) -> Any:
        """Posts to the API."""
        answer = self.http.post(f"/api/v1{where}", json=body)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    def submit(self, repository: Path, **body: Any) -> int:
        """Submits ``main`` of a repository, which is registered on the way; the job's number."""
        self.post("/repositories", {"name": "demo", "url": str(repository)})
        return int(self.post("/jobs", {"repository": "demo", "trees": [{"ref": "main"}], **body})["id"])

    def wait_for_end(self, job: int, deadline_s: float = 90.0) -> Any:
        """The job, ended."""

        def ended() -> Any:
            found = self.get(f"/jobs/{job}")
            return found if found["state"] in ENDED_JOB_STATES else None

        return wait_for(ended, f"job {job} to end; logs in {self.logs}", deadline_s)

    def cases(self, attempt: int) -> list[Any]:
        """All observations of an attempt that count, page by page."""
        found, query = [], ""
        while True:
            page = self.get(f"/attempts/{attempt}/cases?limit=500{query}")
            found += page["items"]
            if page["next"] is None:
                return found
            query = f"&{page['next']}"

    def wait_for_cases(self, job: int, least: int, most: int) -> Any:
        """The first cell of a job, once as many of its cases are stored, and before the rest is."""

        def some_stored() -> Any:
            cell = self.get(f"/jobs/{job}/cells")[0]
            return cell if least <= sum(cell["counts"].values()) < most else None

        return wait_for(some_stored, f"{least} cases to be stored", 60)

    def verdicts(self, cell: int) -> list[str]:
        """The verdicts of a cell's attempts, earliest first."""
        return [attempt["verdict"] for attempt in self.get(f"/cells/{cell}/attempts")]


@dataclass(frozen=True)
class System(Api):
    """A running system."""

    up: Embedded
    url: str
    http: httpx.Client

    @property
    def logs(self) -> Path:  # type: ignore[override]
        """Where its parts log."""
        return self.up.data_dir / "logs"

    def child(self, name: str) -> psutil.Process:
        """The ``broker``, the service (``serve``) or the ``worker``, as it runs now."""
        return psutil.Process(wait_for(lambda: self.up.children().get(name), f"{name} to run"))

    def kill(self, name: str) -> None:
        """kill -9 of the ``broker``, the service (``serve``) or the ``worker``."""
        child = self.child(name)
        child.send_signal(signal.SIGKILL)
        # It is a child of `up`, which reaps it and starts another.
        wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, f"{name} to die")


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[System]:
    """A system in a folder for as long as the context lasts."""
    with embedded.up(folder, **environment) as up:
        url = up.wait_ready()
        token = path(up.data_dir, Scope.SUBMIT).read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
            yield System(up, url, http)
