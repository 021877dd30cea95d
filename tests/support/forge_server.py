"""Small forges for the tests: they answer as the documented APIs do, errors included, and remember what they took."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "forge-token-0123456789"


@dataclass(frozen=True)
class Call:
    """One request that came. ``at`` is on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer to give. ``drip_s`` lies between its bytes; ``silent`` waits for the server's ``let_go`` first."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    drip_s: float = 0.0


@dataclass
class Server:
    """A server at ``url``. Replies in ``next`` are given first, one a call; then ``answer`` decides."""

    url: str
    answer: Callable[[Call], Reply]
    calls: list[Call] = field(default_factory=list)
    next: deque[Reply] = field(default_factory=deque)
    let_go: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, call: Call) -> Reply:
        """The answer to a call, which is remembered."""
        with self.lock:
            self.calls.append(call)
            reply = self.next.popleft() if self.next else None
        if reply is not None and reply.silent:
            self.let_go.wait(30)
        if reply is None or (reply.silent and reply.status == 0):
            with self.lock:
                reply = self.answer(call)
        return reply


@contextmanager
def serving(answer: Callable[[Call], Reply]) -> Iterator[Server]:
    """A server for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.take(Call(self.path, headers, body, time.monotonic()))
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if reply.drip_s:
                    for byte in content:
                        self.wfile.write(bytes([byte]))
                        time.sleep(reply.drip_s)
                else:
                    self.wfile.write(content)
            except OSError:  # whoever asked has gone
                pass

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}", answer)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.let_go.set()
        http.shutdown()
        thread.join()
        http.server_close()


@dataclass
class FakeForge:
    """What a forge has: one project with commits, and the statuses that it took as (commit, context, state, text)."""

    project: str = "team/demo"
    commits: set[str] = field(default_factory=set)
    token: str = TOKEN
    taken: list[dict[str, Any]] = field(default_factory=list)
    cap: int = 1000

    def shown(self, commit: str) -> list[tuple[str, str]]:
        """State and text of what was taken for a commit, in order."""
        return [(one["state"], one["description"]) for one in self.taken if one["commit"] == commit]

    def take(self, commit: str, context: str, body: Any) -> Reply:
        """Takes a status."""
        one = {"commit": commit, "context": context, **body}
        self.taken.append(one)
        return Reply(201, one)

    def count(self, commit: str, context: str) -> int:
        """How many statuses a commit has under a context."""
        return sum((one["commit"], one["context"]) == (commit, context) for one in self.taken)

    def github(self, call: Call) -> Reply:
        """``POST /repos/{owner}/{repo}/statuses/{sha}`` as api.github.com documents it."""
        found = re.fullmatch(r"/repos/([^/]+/[^/]+)/statuses/([0-9a-f]+)", call.path)
        if call.headers.get("authorization") != f"Bearer {self.token}":
            return Reply(401, {"message": "Bad credentials", "documentation_url": "https://docs.github.com/rest"})
        if found is None or found[1] != self.project:
            return Reply(404, {"message": "Not Found", "documentation_url": "https://docs.github.com/rest"})
        body, commit = call.json, found[2]
        context = body.get("context", "default")
        problem = None
        if commit not in self.commits:
            return Reply(422, {"message": f"No commit found for SHA: {commit}"})
        if body["state"] not in {"error", "failure", "pending", "success"}:
            problem = "state is not included in the list"
        elif len(body.get("description", "")) > 140:
            problem = "description is too long (maximum is 140 characters)"
        elif self.count(commit, context) >= self.cap:
            problem = "This SHA and context has reached the maximum number of statuses."
        if problem is not None:
            return Reply(422, {"message": "Validation Failed", "errors": [{"resource": "Status", "message": problem}]})
        return self.take(commit, context, body)

    def gitlab(self, call: Call) -> Reply:
        """``POST /projects/:id/statuses/:sha`` as GitLab documents it, and its refusal of repeated states."""
        found = re.fullmatch(r"/projects/([^/]+)/statuses/([0-9a-f]+)", call.path)
        if call.headers.get("private-token") != self.token:
            return Reply(401, {"message": "401 Unauthorized"})
        if found is None or unquote(found[1]) != self.project:
            return Reply(404, {"message": "404 Project Not Found"})
        body, commit = call.json, found[2]
        if commit not in self.commits:
            return Reply(404, {"message": "404 Commit Not Found"})
        state, name = body["state"], body.get("name", "default")
        if state not in {"pending", "running", "success", "failed", "canceled", "skipped"}:
            return Reply(400, {"error": "state does not have a valid value"})
        before = [one["state"] for one in self.taken if (one["commit"], one["context"]) == (commit, name)][-1:]
        event = {"pending": "enqueue", "running": "run"}.get(state)
        if event and before and before[0] in {"pending", "running"} and (before[0], state) != ("pending", "running"):
            why = f"Cannot transition status via :{event} from :{before[0]}"
            why += f' (Reason(s): Status cannot transition via "{event}")'
            return Reply(400, {"message": why})
        return self.take(commit, name, body)

    def gitea(self, call: Call) -> Reply:
        """``POST /repos/{owner}/{repo}/statuses/{sha}`` as Gitea and Forgejo document it."""
        found = re.fullmatch(r"/repos/([^/]+/[^/]+)/statuses/([0-9a-f]+)", call.path)
        if call.headers.get("authorization") != f"token {self.token}":
            return Reply(401, {"message": "invalid username, password or token", "url": "/api/swagger"})
        if found is None or found[1] != self.project:
            return Reply(404, {"errors": None, "message": "not found", "url": "/api/swagger"})
        body, commit = call.json, found[2]
        if commit not in self.commits:
            return Reply(404, {"errors": None, "message": f"commit does not exist: {commit}", "url": "/api/swagger"})
        if body["state"] not in {"pending", "success", "error", "failure", "warning"}:
            return Reply(422, {"message": "unknown CommitStatusState", "url": "/api/swagger"})
        return self.take(commit, body.get("context", ""), body)
