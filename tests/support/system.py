"""The whole embedded system as a user starts it: `replaybench up` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from service.tokens import Scope, path
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class System:
    """A running system. ``http`` carries the submit token."""

    url: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    http: httpx.Client

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

    def child(self, name: str) -> psutil.Process:
        """One of the children of `up`: broker, service or worker."""
        words = {"broker": "valkey", "service": "serve", "worker": "worker"}
        for child in psutil.Process(self.process.pid).children():
            command = child.cmdline()
            if (name == "broker" and any(words["broker"] in part for part in command[:1])) or command[-1:] == [
                words[name]
            ]:
                return child
        raise AssertionError(
            f"`up` has no child {name}: {[c.cmdline() for c in psutil.Process(self.process.pid).children()]}"
        )

    def kill(self, name: str) -> None:
        """kill -9 of a child, and waits until another has taken its place and is ready."""
        child = self.child(name)
        child.send_signal(signal.SIGKILL)
        child.wait(10)

    def wait_for_end(self, job: int, deadline_s: float = 90.0) -> Any:
        """The job, ended."""

        def ended() -> Any:
            found = self.get(f"/jobs/{job}")
            return found if found["state"] in {"passed", "failed", "broken", "cancelled"} else None

        return wait_for(ended, f"job {job} to end; logs in {self.data_dir / 'logs'}", deadline_s)

    def cases(self, attempt: int) -> list[Any]:
        """All observations of an attempt that count, page by page."""
        found, query = [], ""
        while True:
            page = self.get(f"/attempts/{attempt}/cases?limit=500{query}")
            found += page["items"]
            if page["next"] is None:
                return found
            query = f"&{page['next']}"


@contextmanager
def running(data_dir: Path, **environment: str) -> Iterator[System]:
    """A system for as long as the context lasts."""
    env = {**os.environ, **environment}
    log = data_dir.with_name(f"{data_dir.name}.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "up", "--data-dir", data_dir, "--port", "0"],
            stdout=out, stderr=subprocess.STDOUT, env=env,
        )  # fmt: skip
    try:

        def url() -> str | None:
            assert process.poll() is None, log.read_text()
            found = re.search(r"^ready: (\S+)", log.read_text(), re.MULTILINE)
            return found[1] if found else None

        address = wait_for(url, f"the ready line in {log}", 60)
        token = path(data_dir, Scope.SUBMIT).read_text().strip()
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
            yield System(address, data_dir, process, http)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
