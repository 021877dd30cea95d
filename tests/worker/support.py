"""What the worker's tests share: git repositories, and a stand-in for the service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker.encoding import decode
from worker.messages import AttemptEndedEvent, Batch, CellSpec, Event, RuntimeSpec, SuiteSpec

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """Wait until a condition holds, with a deadline. Its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return value


def wait_for_thread(name: str) -> None:
    """Wait until no thread of a name runs in this process."""
    wait_for(lambda: not any(thread.name == name for thread in threading.enumerate()), f"thread {name} to end")


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Repository:
    """A git repository to check out from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
        command = ["git", *identity, "-c", "protocol.file.allow=always", "-C", str(self.path), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def commit(self, files: Mapping[str, str | bytes], message: str = "change") -> str:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").decode().strip()

    def tree(self, commit: str = "HEAD") -> str:
        return self.git("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def cell(self, **more: Any) -> CellSpec:
        """A cell of this repository's HEAD."""
        values: dict[str, Any] = {
            "id": 1,
            "job": 1,
            "name": "abc/py/gate",
            "repository": "demo",
            "url": str(self.path),
            "commit": self.git("rev-parse", "HEAD").decode().strip(),
            "tree": self.tree(),
            "probe": None,
            "probe_digest": None,
            "runtime": RuntimeSpec(PYTHON),
            "suite": SuiteSpec("gate", ("tests",)),
        }
        return CellSpec(**(values | more))


Answer = tuple[int, Mapping[str, Any] | None]


@dataclass
class StubService:
    """A real HTTP server that stands for the service. ``script`` answers first, one entry a call to the batches."""

    lease_s: float = 30.0
    stop: bool = False
    assignments: list[Any] = field(default_factory=list)
    claims: list[Any] = field(default_factory=list)
    registrations: list[Any] = field(default_factory=list)
    heartbeats: list[Any] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    script: list[Answer] = field(default_factory=list)
    stored: dict[int, tuple[Event, ...]] = field(default_factory=dict)
    largest: int = 64 << 20
    artifact_status: int = 201
    url: str = ""
    paths: list[str] = field(default_factory=list)
    separate: bool = False
    others: dict[str, dict[int, tuple[Event, ...]]] = field(default_factory=dict)
    """With ``separate``, what is stored of each attempt, by its number in the address."""

    @property
    def ended(self) -> list[Event]:
        """The last words of all attempts."""
        return [event for event in self.events if isinstance(event, AttemptEndedEvent)]

    @property
    def events(self) -> list[Event]:
        """Every event, stored once, in order."""
        every = [self.stored, *self.others.values()]
        return [event for stored in every for seq in sorted(stored) for event in stored[seq]]

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.paths.append(f"{method} {path}")
        if method == "PUT":
            self.artifacts[path.rsplit("/", 1)[-1]] = body
            return self.artifact_status, {}
        if path.endswith(("/enroll", "/register", "/heartbeat", "/claim")):
            return self.membership(path.rpartition("/")[2], json.loads(body))
        if self.script:
            return self.script.pop(0)
        if len(body) > self.largest:
            return 413, {"code": "too-large"}
        stored = self.others.setdefault(path.split("/")[-2], {}) if self.separate else self.stored
        return self.take(decode(Batch, json.loads(body)), stored)

    def membership(self, call: str, body: Any) -> Answer:
        if call == "enroll":
            return 200, {"worker": "gpu-3", "token": "its own"}
        if call == "heartbeat":
            self.heartbeats.append(body)
            return 204, None
        if call == "register":
            self.registrations.append(body)
            return 200, {"worker": 7, "heartbeat_s": 0.3}
        self.claims.append(body)
        return (200, self.assignments.pop(0)) if self.assignments else (204, None)

    def take(self, batch: Batch, into: dict[int, tuple[Event, ...]] | None = None) -> Answer:
        stored = self.stored if into is None else into
        self.batches.append(batch)
        due = len(stored) + 1
        if batch.events:
            if batch.seq > due:
                return 409, {"code": "batch-gap", "expected": due}
            stored.setdefault(batch.seq, batch.events)
        return 200, {"acknowledged": len(stored), "lease_s": self.lease_s, "stop": self.stop}
