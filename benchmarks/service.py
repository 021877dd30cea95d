"""How fast one service process is: batches taken in, pages read, long lists, many workers. Each part runs alone.

    .venv/bin/python benchmarks/service.py [PART...] [--out FILE] [--cases N] [--million N] [--workers N] [--seconds N]

Parts: ``ingest-sqlite``, ``ingest-postgres``, ``readers``, ``lists``, ``heartbeats``; default: all. Each prints one
JSON line, with its limits and whether they hold; with ``--out`` the line is kept there too, and a part whose line for
this commit is there already is not run again. ``ingest-*`` compares with a peer in the same run: the very same rows,
by the same statement, driver, indexes and batch size, a transaction a batch, written straight into a second database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

# Before this folder, where this very file would be found as the package.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from benchmarks import filling
from benchmarks.load import Hit, percentile, storm
from service import tokens
from service.database import Database, upgrade
from service.results import ingest
from service.settings import Settings
from tests.support import broker, postgres, repository
from tests.support.postgres import free_port
from tests.support.running_service import DrivenAttempt, RunningService
from tests.support.waiting import wait_for
from worker.encoding import encode
from worker.messages import Batch, CaseEvent, FailureClass, Outcome

ROOT = Path(__file__).resolve().parent.parent
BATCH = 500
"""Events of a batch, as a worker sends them."""
RATIO, LEAST_CASES, LIST_MS, BEAT_MS, READERS, BEAT_EVERY_S = 0.5, 5_000, 100.0, 6.0, 50, 15.0


@dataclass(frozen=True)
class Options:
    """How much is done."""

    cases: int
    million: float
    workers: int
    seconds: float


@contextlib.contextmanager
def served(database_url: str | None = None, **environment: str) -> Iterator[RunningService]:
    """One service process on an empty database: SQLite where no URL is given."""
    with tempfile.TemporaryDirectory(prefix="replaybench-service-") as folder, broker.running() as broker_url:
        data, port = Path(folder) / "data", free_port()
        settings = Settings(
            data_dir=data, database_url=database_url or f"sqlite:///{folder}/it.db", broker_url=broker_url, port=port
        )
        upgrade(settings.database)
        known = tokens.ensure(data)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "REPLAYBENCH_DATA_DIR": str(data), "BROKER_URL": broker_url,
               "DATABASE_URL": settings.database, "REPLAYBENCH_LOG_LEVEL": "warning", "REPLAYBENCH_TOKEN_RATE": "0",
               **environment}  # fmt: skip
        command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)]
        process = subprocess.Popen(command, cwd=ROOT, env=env)
        people, workers = ({"Authorization": f"Bearer {token}"} for token in (known.submit, known.worker))
        database = Database(settings.database)
        try:
            with (
                httpx.Client(base_url=settings.url, headers=people, timeout=120) as http,
                httpx.Client(base_url=settings.url, headers=workers, timeout=120) as worker_http,
            ):
                wait_for(lambda: _answers(http), "the service to answer")
                yield RunningService(settings.url, settings, database, http, worker_http)
        finally:
            database.close()
            process.terminate()
            process.wait(30)


def _answers(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/api/v1/health").status_code == 200
    return False


@contextlib.contextmanager
def _database(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The URLs of two empty databases of a kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/one.db", f"sqlite:///{folder}/two.db"
        return
    with postgres.running() as server:
        yield postgres.create(server, "one"), postgres.create(server, "two")


def _events(count: int) -> list[CaseEvent]:
    """Observations as suites give them: one in ten fails, with a message and a traceback."""
    trace = "\n".join(f"    line {number} of a traceback, as long as such lines are" for number in range(24))
    events = []
    for number in range(count):
        fails = number % 10 == 0
        node_id = f"tests/library/test_parity.py::TestReplay::test_case[resnet18-amp-{number}]"
        told = {"failure_class": FailureClass.ASSERTION, "message": "AssertionError: 1 == 2", "traceback": trace}
        events.append(CaseEvent(1, node_id, 0, Outcome.FAILED if fails else Outcome.PASSED, duration_s=0.0123,
                                properties={"seed": number}, **(told if fails else {})))  # fmt: skip
    return events


def ingest_part(kind: str, options: Options) -> dict[str, Any]:
    """Cases stored a second through batches over HTTP, and by the peer, in turns."""
    with tempfile.TemporaryDirectory(prefix="replaybench-ingest-") as folder:
        root = Path(folder)
        with _database(kind, root) as (ours, theirs), served(ours) as it:
            upgrade(theirs)
            repo = repository.make(root / "repo")
            it.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
            peer, driver = Database(theirs), it.driver()
            filling.lay_ground(peer)
            events = _events(options.cases)
            groups = [events[start : start + BATCH] for start in range(0, len(events), BATCH)]
            found: dict[str, list[float]] = {"service": [], "peer": []}
            for number in range(4):  # the first round warms up
                it.submit("demo", "main")
                attempt = driver.must_claim()
                attempt.start(len(events))
                rates = {
                    "service": len(events) / _timed(_posting(it, attempt, groups)),
                    "peer": len(events) / _timed(_writing(peer, number, groups)),
                }
                if number:
                    for name, rate in rates.items():
                        found[name].append(rate)
            peer.close()
    ratio = statistics.median(a / b for a, b in zip(found["service"], found["peer"], strict=True))
    rate = statistics.median(found["service"])
    return {"cases": options.cases, "batch": BATCH, "service_per_s": round(rate),
            "peer_per_s": round(statistics.median(found["peer"])), "ratio": round(ratio, 3),
            "limits": {"ratio": RATIO, "service_per_s": LEAST_CASES},
            "holds": ratio >= RATIO and rate >= LEAST_CASES}  # fmt: skip


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _posting(it: RunningService, attempt: DrivenAttempt, groups: Sequence[Sequence[CaseEvent]]) -> Callable[[], None]:
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
    bodies = [
        json.dumps(encode(Batch(attempt.assignment.token, attempt.seq + 1 + number, tuple(group)))).encode()
        for number, group in enumerate(groups)
    ]

    def work() -> None:
        for body in bodies:
            answer = it.worker_http.post(path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 200, answer.text

    return work


def _writing(peer: Database, number: int, groups: Sequence[Sequence[CaseEvent]]) -> Callable[[], None]:
    attempt = filling.add_attempt(peer, number)
    batches = [[ingest.case_row(attempt, event) for event in group] for group in groups]

    def work() -> None:
        for rows in batches:
            with peer.write() as session:
                session.execute(ingest.INSERT_CASES, rows)

    return work


def readers_part(options: Options) -> dict[str, Any]:
    """A job's page, table and cells, each read by 50 readers at once. The job has 60 cells of 200 cases."""
    with (
        tempfile.TemporaryDirectory(prefix="replaybench-readers-") as folder,
        _database("postgres", Path(folder)) as (
            url,
            _,
        ),
        served(url) as it,
    ):
        filling.fill(it.database, jobs=30, cells=60, cases=200)
        token = tokens.ensure(it.settings.data_dir).submit
        paths = ["/jobs/7", "/api/v1/jobs/7", "/api/v1/jobs/7/table", "/api/v1/jobs/7/cells", "/api/v1/jobs?limit=50"]
        found = {}
        for path in paths:
            latencies = asyncio.run(storm(it.settings.port, [Hit("GET", path, token)], READERS, options.seconds))
            found[path] = latencies
    return {"readers": READERS, "endpoints": {path: _shown(one) for path, one in found.items()},
            "holds": all(not one.errors for one in found.values())}  # fmt: skip


def _shown(latencies: Any) -> dict[str, Any]:
    return {"p50_ms": round(percentile(latencies.ms, 50), 1), "p95_ms": round(percentile(latencies.ms, 95), 1),
            "p99_ms": round(percentile(latencies.ms, 99), 1), "per_s": round(len(latencies.ms) / latencies.wall_s, 1),
            "errors": latencies.errors}  # fmt: skip


def lists_part(options: Options) -> dict[str, Any]:
    """Lists and pages beside millions of cases, one reader at a time."""
    cases = 1000
    jobs = max(1, int(options.million * 1_000_000 / (50 * cases)))
    free = shutil.disk_usage(tempfile.gettempdir()).free
    assert free > options.million * 2**30, f"{free >> 30} GiB free: too little for {options.million} million cases"
    with (
        tempfile.TemporaryDirectory(prefix="replaybench-lists-") as folder,
        _database("postgres", Path(folder)) as (
            url,
            _,
        ),
        served(url) as it,
    ):
        fill_s = _timed(lambda: filling.fill(it.database, jobs=jobs, cells=50, cases=cases))
        token = tokens.ensure(it.settings.data_dir).submit
        attempt = jobs * 25
        after = attempt * cases - cases // 2
        case = urlencode({"repository": "demo", "node_id": "tests/test_parity.py::test_case[77]"})
        paths = ["/api/v1/jobs?limit=50", f"/api/v1/jobs?limit=50&before={jobs // 2 + 1}", f"/api/v1/jobs/{jobs}/cells",
                 f"/api/v1/jobs/{jobs}/table", f"/api/v1/attempts/{attempt}/cases",
                 f"/api/v1/attempts/{attempt}/cases?after={after}", f"/api/v1/attempts/{attempt}/cases?outcome=failed",
                 f"/api/v1/attempts/{attempt}/cases?last=false", "/", f"/jobs/{jobs}", f"/cells/{attempt}",
                 f"/api/v1/history?{case}", f"/api/v1/history?{case}&before={after}",
                 f"/api/v1/history?{case}&suite=suite3", f"/history?case={after}"]  # fmt: skip
        found = {
            path: asyncio.run(storm(it.settings.port, [Hit("GET", path, token)], 1, options.seconds)) for path in paths
        }
    slow = [path for path, one in found.items() if one.errors or percentile(one.ms, 95) > LIST_MS]
    return {"cases": jobs * 50 * cases, "fill_s": round(fill_s), "limits": {"p95_ms": LIST_MS}, "slow": slow,
            "endpoints": {path: _shown(one) for path, one in found.items()}, "holds": not slow}  # fmt: skip


def heartbeats_part(options: Options) -> dict[str, Any]:
    """Workers that beat every 15 s, each over a connection of its own: half idle, half with an attempt."""
    with (
        tempfile.TemporaryDirectory(prefix="replaybench-beats-") as folder,
        _database("postgres", Path(folder)) as (
            url,
            _,
        ),
        served(url) as it,
    ):
        token = tokens.ensure(it.settings.data_dir).worker
        beats = filling.add_workers(it.database, options.workers)
        hits = [Hit("POST", path, token, json.dumps(body).encode()) for path, body in beats]
        seconds = max(options.seconds, BEAT_EVERY_S)
        latencies = asyncio.run(storm(it.settings.port, hits, len(hits), seconds, every_s=BEAT_EVERY_S))
    holds = not latencies.errors and percentile(latencies.ms, 50) <= BEAT_MS
    return {"workers": options.workers, "every_s": BEAT_EVERY_S, **_shown(latencies), "limits": {"p50_ms": BEAT_MS},
            "holds": holds}  # fmt: skip


PARTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "ingest-sqlite": lambda options: ingest_part("sqlite", options),
    "ingest-postgres": lambda options: ingest_part("postgres", options),
    "readers": readers_part,
    "lists": lists_part,
    "heartbeats": heartbeats_part,
}


def _done(out: Path | None, commit: str) -> set[str]:
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {line["part"] for line in lines if line["commit"] == commit}


def main() -> int:
    """Prints a line for each part; the exit code is 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS], metavar="PART")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", type=int, default=20_000, help="of each ingest round")
    parser.add_argument("--million", type=float, default=10.0, help="million cases that the lists lie among")
    parser.add_argument("--workers", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="for which each endpoint is read")
    given = parser.parse_args()
    options = Options(given.cases, given.million, given.workers, given.seconds)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()  # fmt: skip
    holds = True
    done = _done(given.out, commit)
    for part in [name for name in given.parts or PARTS if name not in done]:
        line = {"part": part, "commit": commit, **PARTS[part](options)}
        holds = holds and line["holds"]
        print(json.dumps(line), flush=True)
        if given.out is not None:
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
